"""A headless Chromium, spoken to over its pipe (the DevTools protocol): what a page shows, says on its console and asks for."""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time


class Browser:
    PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="sluice-browser-")
        to_read, self.to = os.pipe()
        self.come, to_write = os.pipe()
        command = [self.installed(), "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={self.folder}", "about:blank"]
        if os.getuid() == 0:
            command.insert(1, "--no-sandbox")  # its sandbox refuses to be root's; it sees nothing but our own page
        # The protocol comes on descriptors 3 and 4.
        shell = ["/bin/sh", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "sh", *command]
        self.process = subprocess.Popen(shell, pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        start_new_session=True)
        os.close(to_read)
        os.close(to_write)
        self.pending, self.events, self.number, self.session = b"", [], 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    @classmethod
    def installed(cls):
        return next(filter(None, map(shutil.which, cls.PROGRAMS)), None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.to)
        try:
            self.process.wait(5)  # it ends with its pipe
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.come)
        shutil.rmtree(self.folder, ignore_errors=True)

    def message(self, deadline):
        while b"\0" not in self.pending:
            if not select.select([self.come], [], [], max(0, deadline - time.monotonic()))[0]:
                raise AssertionError("the browser does not answer")
            chunk = os.read(self.come, 1 << 16)
            if not chunk:
                raise AssertionError("the browser ended")
            self.pending += chunk
        text, self.pending = self.pending.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            message = self.message(deadline)
            if message.get("id") == self.number:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def evaluate(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def complaints(self):
        """What the console would show in red, and what the page tripped over."""
        out = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                out.append(json.dumps(parameters["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                out.append(parameters["entry"]["text"])
            elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                out.append(json.dumps(parameters["args"]))
        return out

    def asked_for(self):
        """The addresses that were requested."""
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]

    def resize(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
