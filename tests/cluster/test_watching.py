"""What a running job shows to who watches it: its metrics, to a reader of the text format and to a real Prometheus, its page, to a
real browser that presses the buttons, and its timeline."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request

import browser
import harness
import trace_events
from harness import TOOLS, ClusterTest, Job, wait_for

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "prometheus"
LONG = {"job.rounds": 100000, "emulate.unit_time": "2ms", "job.units": 8}
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def parse(text):
    """{name: {labels: value}}; each line has to be of the format."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# HELP ") or line.startswith("# TYPE "):
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        found.setdefault(match[1], {})[match[2] or ""] = float(match[3])
    return found


def listening_port(pid):
    """Of the process, once it listens; it was told to let the kernel choose."""
    sockets = set()
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(str(link.readlink()))
        except OSError:
            pass
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                return int(fields[1].rsplit(":", 1)[1], 16)
    return None


def resident(pid):
    """Bytes."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class Timeline(ClusterTest):
    """timeline.json can be opened at any time, also of a job that was resumed; and by who reads the format as it is written down."""

    def check_format(self, job):
        self.assertEqual(trace_events.faults((job.run_dir / "timeline.json").read_text())[:5], [])

    @staticmethod
    def rounds_of_timeline(job):
        try:
            timeline = json.loads((job.run_dir / "timeline.json").read_text())
        except (FileNotFoundError, ValueError):  # not there yet, or in the middle of a write
            return []
        names = [event["name"] for event in timeline["traceEvents"] if event["ph"] == "X"]
        return [int(name[6:]) for name in names if name.startswith("round ")]

    def test_it_is_whole_while_the_job_runs(self):
        with Job(2, LONG | {"checkpoint.every_rounds": 5}) as job:
            job.start()
            for count in (5, 15):
                wait_for(f"{count} rounds in the timeline", lambda count=count: len(self.rounds_of_timeline(job)) >= count, 60)
            self.assertIsNone(job.processes["coordinator"].poll())
            job.processes["coordinator"].send_signal(signal.SIGINT)
            self.assertEqual(job.wait(), 130)
            self.assertEqual(self.rounds_of_timeline(job), [line["round"] for line in job.rounds()])
            self.check_format(job)
            before = len(job.rounds())
            job.start_coordinator("--resume")
            for index in range(2):
                job.start_worker(index, name=f"again{index}")
            job.wait_for_rounds(before + 5)
            job.processes["coordinator"].send_signal(signal.SIGINT)
            self.assertEqual(job.wait(), 130)
            self.assertEqual(self.rounds_of_timeline(job), [line["round"] for line in job.rounds()])
            self.check_format(job)

    def test_every_kind_of_round_is_of_the_format(self):
        # Moves, parts, early sends, those who are left out, and rounds without a barrier.
        for policy, more in {"flexrr": {}, "backup": {}, "async": {}, "local": {"local.steps": 2}}.items():
            options = {"policy.name": policy, "job.rounds": 40, "emulate.unit_time": "2ms", "exchange.mapping": "off",
                       "exchange.transport": "tcp", **more}
            with self.subTest(policy), Job(3, options) as job:
                job.start_coordinator()
                for index in range(3):
                    job.start_worker(index, *(["--slowdown", "factor=3"] if index == 2 else []))
                job.finish()
                self.check_format(job)
                events = json.loads((job.run_dir / "timeline.json").read_text())["traceEvents"]
                names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
                self.assertGreaterEqual(names, {"rounds", "exchanges", "worker 0", "worker 1"})

    def test_what_is_not_of_the_format_is_found(self):
        name = {"name": "thread_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "rounds"}}
        span = {"name": "round 0", "ph": "X", "pid": 1, "tid": 0, "ts": 10, "dur": 20, "args": {"loss": None}}
        instant = {"name": "commit", "ph": "i", "pid": 1, "tid": 0, "ts": 30, "s": "t"}

        def faults(*events, **document):
            return trace_events.faults(json.dumps({"displayTimeUnit": "ms", "traceEvents": list(events), **document}))
        self.assertEqual(faults(name, span, instant, {**span, "ts": 30}, {**span, "ts": 15, "dur": 15}), [])
        for wrong in ({**span, "dur": -1}, {**span, "dur": "20"}, {**span, "ts": float("nan")}, {**span, "tid": "0"}, {**span, "tid": -1},
                      {**span, "ph": "Y"}, {**span, "name": ""}, {**span, "args": [1]}, {**span, "duration": 3}, {**instant, "s": "x"},
                      {**instant, "dur": 3}, {**instant, "ts": True}, {**name, "args": {}}, {**name, "name": "tread_name"}, name,
                      {**span, "ts": 29, "dur": 2}, {**span, "ts": 9, "dur": 2}, {**span, "tid": 1}, 7, None):
            with self.subTest(wrong):
                self.assertNotEqual(faults(name, span, wrong), [])
        for key in ("ts", "dur", "pid", "tid", "name", "ph"):
            with self.subTest(key):
                self.assertNotEqual(faults(name, {other: value for other, value in span.items() if other != key}), [])
        self.assertNotEqual(faults(name, {key: value for key, value in instant.items() if key != "s"}), [])
        self.assertNotEqual(faults(displayTimeUnit="s"), [])
        for text in ("", "[]", "{}", '{"displayTimeUnit": "ms", "traceEvents": ['):
            self.assertNotEqual(trace_events.faults(text), [], text)


class Metrics(ClusterTest):
    def start(self, job):
        job.start()
        job.wait_for_rounds(5)
        self.http = (job.run_dir / "http.address").read_text().strip()

    def metrics(self):
        return parse(get(f"http://{self.http}/metrics")[1])

    def test_they_follow_the_job(self):
        with Job(2, LONG, coordinator_args=["--http", "127.0.0.1:0"]) as job:
            self.start(job)
            kind, text = get(f"http://{self.http}/metrics")
            self.assertEqual(kind, "text/plain; version=0.0.4; charset=utf-8")
            first = parse(text)
            self.assertEqual(first["lockstep_job_phase"]['phase="training"'], 1)
            self.assertEqual(first["lockstep_workers"]['state="live"'], 2)
            self.assertEqual(first["lockstep_worker_incarnation"], {'worker="0"': 1, 'worker="1"': 1})
            self.assertGreater(first["lockstep_worker_unit_seconds"]['worker="1"'], 0.0015)
            self.assertGreaterEqual(first["lockstep_rounds_total"][""], 5)
            buckets = list(first["lockstep_round_seconds_bucket"].values())
            self.assertEqual(buckets, sorted(buckets))
            self.assertEqual(buckets[-1], first["lockstep_round_seconds_count"][""])
            links = first["lockstep_link_bytes_per_second"]
            self.assertEqual(sorted(re.sub(",path=.*", "", labels) for labels in links),
                             ['worker="0",peer="1"', 'worker="1",peer="0"'])
            self.assertGreater(min(links.values()), 1e6)
            job.wait_for_rounds(int(first["lockstep_rounds_total"][""]) + 5)
            memory = "lockstep_worker_resident_memory_bytes"
            wait_for("both workers to have said how much memory they have", lambda: len(self.metrics().get(memory, {})) == 2)
            ratio = self.metrics()[memory]['worker="0"'] / resident(job.processes["worker0"].pid)
            self.assertTrue(0.5 < ratio < 2, ratio)
            text = get(f"http://{self.http}/metrics")[1]
            second = parse(text)
            self.assertGreater(second["lockstep_rounds_total"][""], first["lockstep_rounds_total"][""])
            self.assertGreater(second["lockstep_round_seconds_sum"][""], first["lockstep_round_seconds_sum"][""])

            job.processes["worker1"].kill()
            wait_for("the loss of a worker to be seen", lambda: self.metrics()["lockstep_workers"]['state="lost"'] == 1)
            after = self.metrics()
            self.assertEqual(after["lockstep_worker_live"]['worker="1"'], 0)
            self.assertNotIn("lockstep_link_bytes_per_second", after)
            self.assertEqual(list(after[memory]), ['worker="0"'])
            job.start_worker(1, name="again")
            wait_for("it to be back", lambda: self.metrics()["lockstep_worker_incarnation"]['worker="1"'] == 2)

            panels = json.loads((EXAMPLES / "dashboard.json").read_text())["panels"]
            asked_for = " ".join(target["expr"] for panel in panels for target in panel["targets"])
            asked_for += (EXAMPLES / "alerts.yml").read_text()
            # Of the one none is known yet, and these workers' programs say nothing of the other.
            there = set(second) | {"lockstep_test_accuracy", "lockstep_worker_input_wait_seconds_total"}
            self.assertEqual(set(re.findall(r"lockstep_[a-z_]+", asked_for)) - there, set())

            lines = json.loads(get(f"http://{self.http}/rounds")[1])
            self.assertEqual([line["round"] for line in lines], list(range(lines[0]["round"], lines[0]["round"] + len(lines))))
            newest = lines[-1]["round"]
            self.assertIn(lines[-1], job.rounds())
            self.assertTrue(all(line["round"] > newest for line in json.loads(get(f"http://{self.http}/rounds?after={newest}")[1])))

            if shutil.which("promtool"):
                done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    @unittest.skipUnless(shutil.which("chromium"), "there is no chromium")
    def test_a_browser_draws_the_page(self):
        with Job(3, LONG, policy__name="flexrr", coordinator_args=["--http", "127.0.0.1:0"]) as job, tempfile.TemporaryDirectory() as folder:
            self.start(job)
            command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}",
                       "--virtual-time-budget=5000", "--dump-dom", f"http://{self.http}/"]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r'<body data-looks="[1-9]')  # it has had answers, and drawn all of them
            self.assertRegex(done.stdout, r"<b>3 of 3</b><span>workers</span>")
            self.assertEqual(len(re.findall(r'<tr class="[a-z]*"><td>[012]</td><td>live', done.stdout)), 3)
            self.assertIn('id="phase">training<', done.stdout)
            self.assertGreater(done.stdout.count("<rect"), 20)
            self.assertNotIn("NaN", done.stdout.split("<script>")[0])

    def test_a_run_directory_shows_and_changes_no_other_job(self):
        with Job(2, LONG) as first, Job(2, LONG) as other:
            first.start_coordinator("--http", "127.0.0.1:0")
            first.start_worker(0)
            first.start_worker(1)
            first.wait_for_rounds(2)
            self.http = self.http_address(first)
            self.assertEqual((first.run_dir / "job.id").read_text().strip(), self.status()["job_id"])
            self.assertEqual(self.ctl(first, "status").returncode, 0)
            self.assertEqual(self.ctl(first, "policy", "backup").returncode, 0)
            first.processes["coordinator"].kill()
            first.wait()
            other.start_coordinator("--http", self.http)
            other.start_worker(0)
            other.start_worker(1)
            other.wait_for_rounds(2)
            for words in (["status"], ["policy", "backup"]):
                done = self.ctl(first, *words)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertEqual(done.stderr, f"ctl: --run-dir {first.run_dir}: its job does not run any more: another job is at {self.http}\n")
            self.assertEqual(self.status()["policy"], "full+none")
            self.assertEqual(self.ctl(other, "policy", "backup").returncode, 0)
            other.processes["coordinator"].send_signal(signal.SIGINT)
            for name in ("coordinator", "worker0", "worker1"):
                other.wait(name)
            self.assertEqual(self.http_address(other), "")
            done = self.ctl(other, "status")
            self.assertEqual((done.returncode, done.stderr), (1, f"ctl: the job in {other.run_dir} has ended\n"))
            # Goes on without a status page: the address of the start before is nobody's, and the job has no result.
            (other.run_dir / "http.address").write_text(self.http + "\n")
            other.start_coordinator("--resume")
            other.start_worker(0)
            other.start_worker(1)
            wait_for("the address to be gone", lambda: not self.http_address(other))
            self.assertFalse((other.run_dir / "summary.json").exists())
            done = self.ctl(other, "status")
            self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)
            self.assertIn("there is no http.address", done.stderr)

    @staticmethod
    def ctl(job, *words):
        return subprocess.run([TOOLS / "ctl", "--run-dir", job.run_dir, *words], capture_output=True, text=True, timeout=120, check=False)

    @staticmethod
    def http_address(job):
        path = job.run_dir / "http.address"
        return path.read_text().strip() if path.exists() else ""

    def open_page(self, page, host=None):
        page.open(f"http://{host or self.http}/")
        wait_for("the page to know what a change needs", lambda: page.get("typeof access !== 'undefined' && access"), 60)

    def status(self):
        return json.loads(get(f"http://{self.http}/status")[1])

    def wait_for_answer(self, page, kind, text):
        """The coordinator's, as the page shows it."""
        def there():
            shown, said = page.get("[document.getElementById('answer').className, document.getElementById('answer').textContent]")
            return shown == kind and text in said
        wait_for(f"{kind}: {text}", there)

    def change_policy(self, page, name):
        page.fill("policy", name)
        page.press("#policy-form button")

    @unittest.skipUnless(browser.PROGRAM, "there is no chromium")
    def test_the_page_mixes_no_two_jobs(self):
        """Of which the one that takes the address may have run for longer."""
        with Job(2, LONG, coordinator_args=["--http", "127.0.0.1:0"]) as job, browser.Browser() as page:
            self.start(job)
            self.open_page(page)
            wait_for("rounds on the page", lambda: page.get("rounds.size > 0"))
            page.get("""(() => {
              rounds.set(1e9, lastRounds(1)[0]);
              const asked = fetch;
              fetch = async (path, options) => {
                const answer = await asked(path, options);
                if (path !== "/status") return answer;
                const status = await answer.json();
                return new Response(JSON.stringify({...status, job_id: "another", seconds: status.seconds + 1000}));
              };
              return true;
            })()""")
            wait_for("the other job's rounds alone", lambda: page.get("rounds.size > 0 && !rounds.has(1e9)"))

    @unittest.skipUnless(browser.PROGRAM, "there is no chromium")
    def test_what_the_page_reckons(self):
        with Job(2, LONG, coordinator_args=["--http", "127.0.0.1:0"]) as job, browser.Browser() as page:
            self.start(job)
            self.open_page(page)
            self.assertEqual(page.get("median([0.08, 0, 0.02])"), 0.02)
            self.assertEqual(page.get("median([3, 1, 2])"), 2)
            # Two units go to worker 1 and are computed together, one goes there and back.
            moved = ("movedIn({moved: [{from: 0, to: 1, range: [0, 4]}, {from: 0, to: 1, range: [4, 8]}, "
                     "{from: 0, to: 1, range: [8, 12]}, {from: 1, to: 0, range: [8, 12]}]})")
            for worker, first, last, expected in ((1, 0, 8, True), (0, 8, 12, False), (0, 12, 20, False)):
                self.assertEqual(page.get(f"{moved}({{worker: {worker}, range: [{first}, {last}]}})"), expected)

    @unittest.skipUnless(browser.PROGRAM, "there is no chromium")
    def test_the_page_changes_a_job_that_has_no_secret(self):
        with Job(3, LONG, coordinator_args=["--http", "127.0.0.1:0"]) as job, browser.Browser() as page:
            self.start(job)
            self.open_page(page)
            self.assertFalse(page.get("!document.getElementById('secret-form').hidden"))
            self.assertEqual(self.status()["policy"], "full+none")
            self.change_policy(page, "backup+none")
            wait_for("the policy to be another one", lambda: self.status()["policy"] == "backup+none")
            self.wait_for_answer(page, "done", "backup+none")
            self.change_policy(page, "bakcup")
            self.wait_for_answer(page, "refused", "bakcup")
            self.assertEqual(self.status()["policy"], "backup+none")
            page.fill("slowdown", "worker=1,factor=3")
            page.press("#slowdown-form button")
            wait_for("the slow-down to be in force", lambda: len(self.status()["slowdowns"]) == 1)
            page.press("#no-slowdown")
            wait_for("its end", lambda: not self.status()["slowdowns"])
            # Only who says yes has a worker leave.
            wait_for("the workers to be in the list", lambda: page.get("document.getElementById('drain').options.length") == 3)
            page.fill("drain", "2")
            page.get("questions = []; window.confirm = (text) => { questions.push(text); return questions.length > 1; }; true")
            page.press("#drain-form button")
            self.assertFalse([m for m in self.status()["members"] if m["draining"] or m["state"] == "lost"])
            page.press("#drain-form button")
            self.assertEqual(job.wait("worker2"), 0)
            self.assertEqual(page.get("questions"), ["Ask worker 2 to leave the job?"] * 2)
            listed = "[...document.getElementById('drain').options].map((option) => option.value)"
            wait_for("it to be gone from the list", lambda: page.get(listed) == ["0", "1"])

    @unittest.skipUnless(browser.PROGRAM, "there is no chromium")
    def test_the_page_proves_the_secret_and_does_not_say_it(self):
        with Job(2, LONG) as job, browser.Browser() as page:
            secret = job.folder / "secret"
            secret.write_text("Correct-Horse-Battery\n")
            secret.chmod(0o600)
            job.start_coordinator("--secret-file", secret, "--http", "127.0.0.1:0")
            for index in range(2):
                job.start_worker(index, "--secret-file", secret)
            job.wait_for_rounds(5)
            self.http = (job.run_dir / "http.address").read_text().strip()
            self.open_page(page)
            with self.assertRaisesRegex(AssertionError, "cannot be pressed"):
                self.change_policy(page, "backup")
            page.fill("secret", "Wrong-Horse-Battery-Staple")
            page.press("#secret-form button")
            wait_for("the form", lambda: page.get("!document.getElementById('changes').disabled"))
            self.change_policy(page, "backup")
            self.wait_for_answer(page, "refused", "wrong secret")
            self.assertEqual(self.status()["policy"], "full+none")
            wait_for("the page to ask again", lambda: page.get("!document.getElementById('secret-form').hidden"))
            page.fill("secret", "Correct-Horse-Battery")  # as pasted: without the line break of the file
            page.press("#secret-form button")
            wait_for("the form", lambda: page.get("!document.getElementById('changes').disabled"))
            self.assertEqual(page.get("document.getElementById('secret').value"), "")
            for name in ("backup", "full"):  # the second time with the one key that was right
                self.change_policy(page, name)
                self.wait_for_answer(page, "done", name)
                wait_for(name, lambda name=name: self.status()["policy"].startswith(name))
            self.assertEqual(page.get("keys.length"), 1)
            page.press("#forget-form button")
            self.assertEqual(page.get("keys.length"), 0)
            self.assertTrue(page.get("document.getElementById('changes').disabled"))
            told = "".join(page.seen)
            self.assertIn("Lockstep-Proof", told)
            self.assertNotIn("Horse", told)
            self.assertEqual(page.get("localStorage.length + sessionStorage.length + document.cookie.length"), 0)

    @unittest.skipUnless(browser.PROGRAM, "there is no chromium")
    def test_a_page_that_is_not_to_be_trusted_says_so(self):
        # By a name that is neither localhost nor an address of it, plain HTTP is no secure context.
        rules = f"--host-resolver-rules=MAP {socket.gethostname()} 127.0.0.1"
        with Job(1, LONG) as job, browser.Browser(rules) as page:
            secret = job.folder / "secret"
            secret.write_text("Correct-Horse-Battery\n")
            secret.chmod(0o600)
            job.start_coordinator("--secret-file", secret, "--http", "127.0.0.1:0")
            self.http = wait_for("the page's address", lambda: self.http_address(job))
            self.open_page(page, f"{socket.gethostname()}:{self.http.split(':')[1]}")
            self.assertEqual(page.get("access"), "elsewhere")
            self.assertIn("ssh -L", page.get("document.getElementById('access').textContent"))
            self.assertIsNone(page.get("document.getElementById('policy').offsetParent"))
            self.assertIsNone(page.get("document.getElementById('secret').offsetParent"))
            self.assertIn("tools/ctl", page.get("document.querySelector('footer').textContent"))

    @unittest.skipUnless(shutil.which("promtool"), "there is no promtool")
    def test_the_alerts_mean_what_they_say(self):
        with tempfile.TemporaryDirectory() as folder:
            rules = pathlib.Path(__file__).with_name("alerts_test.yml").read_text().replace("ALERTS", str(EXAMPLES / "alerts.yml"))
            path = pathlib.Path(folder) / "alerts_test.yml"
            path.write_text(rules)
            done = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(shutil.which("prometheus"), "there is no prometheus")
    def test_prometheus_scrapes_a_job(self):
        with Job(2, LONG, coordinator_args=["--http", "127.0.0.1:0"]) as job, tempfile.TemporaryDirectory() as folder:
            self.start(job)
            config = (EXAMPLES / "prometheus.yml").read_text().replace("127.0.0.1:8080", self.http).replace("interval: 5s", "interval: 1s")
            path = pathlib.Path(folder) / "prometheus.yml"
            path.write_text(config.replace("alerts.yml", str(EXAMPLES / "alerts.yml")))
            command = ["prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder}/data", "--web.listen-address=127.0.0.1:0"]
            with open(f"{folder}/log", "w", encoding="utf-8") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log)  # pylint: disable=consider-using-with
            try:
                def port():
                    self.assertIsNone(process.poll(), pathlib.Path(f"{folder}/log").read_text())
                    return listening_port(process.pid)
                address = f"http://127.0.0.1:{wait_for('Prometheus to listen', port)}/api/v1"

                def ask(expression):
                    try:
                        answer = json.loads(get(f"{address}/query?{urllib.parse.urlencode({'query': expression})}")[1])
                    except OSError:  # it reads its storage first
                        return []
                    return [float(result["value"][1]) for result in answer["data"]["result"]]
                wait_for("a rate of rounds", lambda: any(rate > 0 for rate in ask("rate(lockstep_rounds_total[10s])")), seconds=90)
                wait_for("the job to be up", lambda: ask('up{job="lockstep"}') == [1])
                wait_for("both workers to be counted", lambda: ask('sum(lockstep_workers{state="live"})') == [2])
                wait_for("a median", lambda: any(median > 0.001 for median in ask(
                    "histogram_quantile(0.5, rate(lockstep_round_seconds_bucket[10s]))")))
                wait_for("the links' speeds", lambda: len(ask("lockstep_link_bytes_per_second > 1e6")) == 2)
                wait_for("the workers' memory", lambda: len(ask("lockstep_worker_resident_memory_bytes > 1e6")) == 2)
                groups = json.loads(get(f"{address}/rules")[1])["data"]["groups"]
                self.assertEqual([rule.get("lastError", "") for rule in groups[0]["rules"]], [""] * 7)
            finally:
                process.terminate()
                process.wait()


if __name__ == "__main__":
    harness.main()
