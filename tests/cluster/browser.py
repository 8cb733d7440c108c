"""A headless Chromium that tests look at pages with and press buttons in, over its debugging pipe."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from harness import PATIENCE

PROGRAM = shutil.which("chromium")
PATIENCE_S = 60.0


class Browser:
    """One page. Use as a context manager. `seen`: all that the browser has told of, as text, what it asked of servers included."""

    def __init__(self, *options):
        self.options = options

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(  # pylint: disable=consider-using-with
            prefix="lockstep-browser-", ignore_cleanup_errors=True)  # its processes may end a moment later
        theirs_in, self.out = os.pipe()
        self.into, theirs_out = os.pipe()
        # It reads commands from descriptor 3 and answers on 4.
        command = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash", PROGRAM, "--headless", "--no-sandbox", "--disable-gpu",
                   "--disable-dev-shm-usage", "--window-size=1240,1400", f"--user-data-dir={self.folder.name}", "--remote-debugging-pipe",
                   *self.options]
        with open(f"{self.folder.name}/log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(  # pylint: disable=consider-using-with
                command, pass_fds=(theirs_in, theirs_out), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        os.close(theirs_in)
        os.close(theirs_out)
        self.rest, self.number, self.session, self.seen = b"", 0, None, []
        return self

    def __exit__(self, kind, value, traceback):
        os.close(self.out)
        os.close(self.into)
        self.process.terminate()
        try:
            self.process.wait(20 * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()

    def _answer(self, number):
        end = time.monotonic() + PATIENCE_S * PATIENCE
        while True:
            message, found, rest = self.rest.partition(b"\0")
            if found:
                self.rest = rest
                answer = json.loads(message)
                if answer.get("id") == number:
                    return answer
                self.seen.append(message.decode())
                continue
            if not select.select([self.into], [], [], max(0, end - time.monotonic()))[0]:
                raise AssertionError("the browser does not answer")
            more = os.read(self.into, 1 << 16)
            if not more:
                with open(f"{self.folder.name}/log", encoding="utf-8", errors="replace") as log:
                    raise AssertionError("the browser has ended: " + log.read()[-3000:])
            self.rest += more

    def call(self, method, **parameters):
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        data = json.dumps(command).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data):]
        answer = self._answer(self.number)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, url):
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Network.enable")
        answer = self.call("Page.navigate", url=url)
        if "errorText" in answer:
            raise AssertionError(f"{url}: {answer['errorText']}")

    def get(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def fill(self, name, text):
        self.get(f"document.getElementById({json.dumps(name)}).value = {json.dumps(text)}; true")

    def press(self, selector):
        """As a person would: what is hidden or disabled cannot be pressed."""
        there = self.get(f"(() => {{ const button = document.querySelector({json.dumps(selector)});"
                         " if (!button || !button.offsetParent || button.matches(':disabled')) return false; button.click(); return true; })()")
        if not there:
            raise AssertionError(f"{selector} cannot be pressed")

    def screenshot(self, path):
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture))
