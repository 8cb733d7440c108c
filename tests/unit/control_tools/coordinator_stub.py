"""A stand-in for the coordinator's HTTP interface."""

import http.server
import json
import threading

MEMBER = {"worker": 0, "incarnation": 1, "state": "live", "host": "node", "pid": 17, "device": "cpu", "units_given": 4, "units_done": 1,
          "unit_seconds": 0.02, "silent_seconds": 0.1, "rounds_contributed": 9, "rounds_excluded": 0, "held_up_seconds": 0.5,
          "owner": True, "draining": False, "run_seconds": 5.0, "input_wait_seconds": None}
STATUS = {"job_id": "0123456789abcdef", "phase": "training", "epoch": 1, "round": 12, "updates": 12, "loss": 0.25, "test_accuracy": None, "samples_per_second": 1234.5, "workers": 5,
          "policy": "full+none", "reason": "all 2 workers with units finished", "waiting_for": "waiting for worker 1 (1 of 4 units done)",
          "seconds": 3.5, "emulated": True, "unit_time_seconds": 0.02, "slowdowns": ["worker=1,factor=4"],
          "members": [MEMBER, {**MEMBER, "worker": 1, "unit_seconds": 0.08, "draining": True, "run_seconds": 5.0, "input_wait_seconds": 4.8}, {**MEMBER, "worker": 2, "away": "validation"}]}


class CoordinatorStub:
    """Keeps (path, body, headers) of each POST; answers with `status` and `answer`."""

    def __init__(self):
        self.requests = []
        self.status, self.answer = 200, {"ok": True, "message": "done"}
        self.page = STATUS
        self.nonce = None
        self.job_id = STATUS["job_id"]
        self.arrived = threading.Condition()
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/nonce":
                    self.reply(*((200, {"nonce": stub.nonce, "job_id": stub.job_id}) if stub.nonce else (404, {"error": "no"})))
                else:
                    self.reply(200, stub.page)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                with stub.arrived:
                    stub.requests.append((self.path, body, dict(self.headers)))
                    stub.arrived.notify_all()
                self.reply(stub.status, stub.answer)

            def reply(self, status, answer):
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = "127.0.0.1:%d" % self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
