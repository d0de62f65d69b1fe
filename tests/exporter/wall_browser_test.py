"""The wall page in a real browser: it shows what there is, whatever names people chose, on a large screen and on a phone.

Usage: wall_browser_test.py BUILD [SCREENSHOTS]

First a real exporter over a real broker with a tenant at work; then a page of one's own making, served the same way, on which
everything happens at once and every name is hostile.
"""

import http.server
import json
import pathlib
import re
import sys
import threading
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
HERE = pathlib.Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "programs")]
from browser import Browser  # noqa: E402
from machine import Machine, wait_until  # noqa: E402

SKIPPED = 77
HOSTILE = "</td><script>window.owned=1</script><img src=x onerror='window.owned=1'>\"&amp;"
GPU = "GPU-00000000-0000-0000-0000-000000000001"


def crowd(step):
    """A snapshot.json of a busy machine; counters grow with `step`."""
    tenants = [{"tenant": n, "user": HOSTILE if n == 1 else f"user{n}", "class": "batch", "profile": HOSTILE, "state": "swapped" if n == 2 else "running",
                "age_s": 60, "processes": 1, "unregistered": int(n == 3), "unhooked": int(n == 4), "runaway": n == 5} for n in range(1, 9)]
    tenants[7]["class"] = "exclusive"
    tenants[0]["training"] = {"steps": 100 + 20 * step, "samples": 6400 + 1280 * step, "tokens": 0, "exposed_communication_s": 10 + step / 2, "straggler": 1.25}
    tenants[0]["off_cpu"] = {"sleeping_s": 10 + step, "runnable_s": 5 + step / 2, "switches": 7}
    slices = [{"tenant": n, "memory_limit_bytes": 2 << 30, "memory_used_bytes": 1 << 30, "memory_swapped_bytes": (1 << 30) * (n == 2), "target_share": 0.125, "guaranteed": n > 1,
               "waiting": n == 1, "achieved_share": 0.1} for n in range(1, 9)]
    slices[0] |= {"busy_s": 5 + step, "idle_s": {"cpu": 1, "disk": 2 + step / 2, "no-work": 3 + step / 2}}
    gpu = {"index": 0, "uuid": GPU, "name": HOSTILE, "software": False, "memory_capacity_bytes": 16 << 30, "memory_promised_bytes": 8 << 30, "memory_quota_bytes": 32 << 30,
           "memory_held_bytes": 7 << 30, "allocated": 1, "guaranteed_share": 0.875, "exclusive": False, "draining": True, "lost": True, "busy": 0.5, "unmanaged_processes": 3, "xid_errors": 2,
           "slices": slices}
    queue = [{"position": n, "user": HOSTILE, "class": "exclusive", "profile": "p", "reason": "gang", "waited_s": 90, **({"why": "the quotas on GPU 0 are full"} if n == 1 else {})}
             for n in range(1, 4)]
    steps = list(range(3590, 0, -10))
    return {"format": 1, "up": True, "gpus": [gpu], "tenants": tenants, "queue": queue, "taken_s": 1000 + 2 * step, "broker_uptime_s": 90061, "tenants_in_all": 8,
            "queue_in_all": 12, "hour": {"ago_s": steps, "queued": [3] * len(steps), "running": [8] * len(steps),
                                         "gpus": {GPU: {"busy": [0.5] * len(steps), "held": [None] * 9 + [0.4] * (len(steps) - 9)}}}}


class Stage:
    """The real page, script, style and headers, over figures of our own. `figures` None: the exporter is away."""

    def __init__(self, real):
        self.figures, self.asked = crowd(0), 0
        stage = self
        pages = {}
        for path in ("/", "/wall.js", "/wall.css"):
            with urllib.request.urlopen(real + path, timeout=300) as answer:
                pages[path] = (answer.read(), dict(answer.headers))

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                if self.path == "/snapshot.json":
                    stage.asked += 1
                    if stage.figures is None:
                        return self.send_error(503)
                    body, headers = json.dumps(stage.figures).encode(), {**pages["/"][1], "Content-Type": "application/json"}
                elif self.path in pages:
                    body, headers = pages[self.path]
                else:
                    return self.send_error(404)
                self.send_response(200)
                for name, value in headers.items():
                    if name not in ("Content-Length", "Content-Encoding"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return None

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


def text_of(browser, selector):
    return browser.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText).join('\\n')")


def check_fits(browser, what, width):
    wide = browser.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, f"{what}: the page is {wide} wide on a screen of {width}"
    # A long name is broken, but not into a column of letters.
    narrow = browser.evaluate("Math.min(...[...document.querySelectorAll('td.name')].map(e => e.clientWidth))")
    assert narrow >= 80, f"{what}: a name has {narrow} px"
    small = browser.evaluate("Math.min(...[...document.querySelectorAll('td, p, h3')].map(e => parseFloat(getComputedStyle(e).fontSize)))")
    assert small >= 14, f"{what}: letters of {small} px"


def check_real(browser, url, machine):
    browser.call("Page.navigate", url=url + "/")
    wait_until("the page has drawn a GPU", lambda: "launch" not in text_of(browser, "#gpus") and "%" in text_of(browser, "#gpus"))
    [tenant] = machine.status()["tenants"]
    wait_until("the tenant is on it", lambda: re.search(rf"(?m)^{tenant['tenant']} {tenant['user']}\b", text_of(browser, "#gpus")))
    assert machine.status()["gpus"][0]["uuid"] in text_of(browser, "#gpus")
    assert "of 256 MiB" in text_of(browser, "#gpus"), text_of(browser, "#gpus")
    wait_until("it works", lambda: re.search(r"works [1-9]\d* %", text_of(browser, "#gpus")))
    assert "1 running, 0 waiting" in text_of(browser, "#state")
    assert "nobody waits" in text_of(browser, "#queue")
    assert browser.evaluate("document.getElementById('training-section').hidden"), "nobody trains"
    wait_until("the hour has a curve", lambda: browser.evaluate("document.querySelectorAll('#hour svg path.busy').length") >= 2, 60)
    strange = [one for one in browser.asked_for() if not one.startswith((url + "/", "data:,"))]
    assert not strange, strange


def check_crowd(browser, stage, shots):
    browser.resize(1600, 1000)
    browser.call("Page.navigate", url=stage.url + "/")
    wait_until("everybody is drawn", lambda: "12 waiting" in text_of(browser, "#state"))
    gpus = text_of(browser, "#gpus")
    for expected in (HOSTILE, "LOST", "3 beside Sluice", "2 device errors", "works 50 %, guaranteed 88 %", "7 GiB of 16 GiB held, quotas of 32 GiB", "runaway", "swapped",
                     "unregistered", "unhooked", "waits", "10 %, 13 % guaranteed", "10 %, weight 13"):
        assert expected in gpus, f"{expected!r} is not on the page:\n{gpus}"
    queue = text_of(browser, "#queue")
    for expected in (HOSTILE, "gang", "1 min", "the quotas on GPU 0 are full", "and 9 more"):
        assert expected in queue, f"{expected!r} is not on the page:\n{queue}"
    assert "broker up for 1 d 1 h" in text_of(browser, "#state")
    assert "Off the CPU" in text_of(browser, "main") and "Training" in text_of(browser, "main")
    stage.figures = crowd(1)
    wait_until("rates come from two looks", lambda: "(10/s)" in text_of(browser, "#training"))
    training = text_of(browser, "#training")
    assert "640/s" in training and "25 %" in training and "1.25 x" in training, training
    assert "0.50" in text_of(browser, "#idle") and "0.25" in text_of(browser, "#idle"), text_of(browser, "#idle")
    causes = text_of(browser, "#causes")
    assert "busy 50 %" in causes and "disk 25 %" in causes and "no-work 25 %" in causes and "cpu" not in causes, causes
    assert "8 user8" in causes and causes.count("has its GPUs as a whole: nothing is metered there") == 1, causes
    widths = browser.evaluate("[...document.querySelectorAll('#causes .bar span')].map(e => e.style.width)")
    assert widths == ["50%", "0%", "25%", "25%"], widths
    lines = browser.evaluate("[...document.querySelectorAll('#hour svg path.busy')].map(e => e.getAttribute('d').length)")
    assert len(lines) == 2 and min(lines) > 1000, lines
    # Names are text: nothing of them became markup, and nothing of them ran.
    assert browser.evaluate("document.querySelectorAll('td script, td img, h3 script, h3 img').length") == 0
    assert browser.evaluate("window.owned") is None
    for name, width, height, phone in (("screen", 1600, 1000, False), ("phone", 390, 844, True), ("old_phone", 320, 568, True)):
        browser.resize(width, height, phone)
        check_fits(browser, name, width)
        if shots:
            browser.screenshot(f"{shots}/{name}.png")


def check_away(browser, stage):
    """The broker goes, then the exporter, then both are back."""
    stage.figures = {"format": 1, "up": False, "error": "no answer from the broker at /x", "gpus": [], "tenants": [], "queue": [],
                     "hour": {"ago_s": [], "queued": [], "running": [], "gpus": {}}}
    wait_until("the broker is missed", lambda: text_of(browser, "#state") == "no answer from the broker at /x")
    assert "nobody waits" not in text_of(browser, "#queue"), "nobody knows"
    assert not browser.complaints(), browser.complaints()
    stage.figures = None
    wait_until("the exporter is missed", lambda: "the exporter does not answer" in text_of(browser, "#state"))
    stage.figures = crowd(2)
    wait_until("both are back", lambda: "12 waiting" in text_of(browser, "#state"))


def main():
    if Browser.installed() is None:
        print("skipped: no Chromium is installed (Debian package chromium)")
        return SKIPPED
    shots = sys.argv[2] if len(sys.argv) > 2 else None
    with Machine(sys.argv[1], rate=16_000_000) as machine, Browser() as browser:
        machine.start_broker()
        exporter = machine.launch([machine.build / "bin/sluice-exporter", "--no-bpf", "--listen", "127.0.0.1:0", "--socket", machine.socket])
        url = re.search(r"serving (\S+)/metrics ", exporter.stderr.readline())[1]
        job = machine.start(machine.slice(machine.program("launch_loop")))
        check_real(browser, url, machine)
        if shots:
            browser.screenshot(f"{shots}/real.png")
        machine.stop(job)
        wait_until("the tenant has left the page", lambda: "0 running" in text_of(browser, "#state"))
        assert not browser.complaints(), browser.complaints()
        stage = Stage(url)
        check_crowd(browser, stage, shots)
        assert not browser.complaints(), browser.complaints()
        check_away(browser, stage)
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
