"""The nginx of docs/wall.md, as it stands there, before a real exporter: password and TLS.

Usage: reverse_proxy_test.py BUILD ROOT
"""

import base64
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

sys.dont_write_bytecode = True  # the source tree stays as it is
sys.path.append(str(pathlib.Path(__file__).parents[1] / "programs"))
from machine import Machine, wait_until  # noqa: E402

SKIPPED = 77


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def configuration(root, folder, exporter_port, port):
    """The documented block, with this machine's ports and files in the place of the documented ones."""
    block = re.search(r"```nginx\n(.*?)```", (root / "docs/wall.md").read_text(), re.S)[1]
    for was, now in (("listen 9844 ssl", f"listen 127.0.0.1:{port} ssl"), ("http://127.0.0.1:9843", f"http://127.0.0.1:{exporter_port}"),
                     ("/etc/ssl/sluice.pem", f"{folder}/cert.pem"), ("/etc/ssl/sluice.key", f"{folder}/key.pem"),
                     ("auth_basic_user_file /etc/nginx/sluice.users;", f"auth_basic_user_file {folder}/users;")):
        assert was in block, f"docs/wall.md's nginx has no {was}"
        block = block.replace(was, now)
    paths = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "scgi", "uwsgi"))
    user = "user root root;\n" if os.getuid() == 0 else ""  # the test's folder is its owner's alone
    return (f"{user}daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{block}}}\n")


def ask(url, context, password=None, method="GET"):
    request = urllib.request.Request(url, method=method)
    if password:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"prometheus:{password}".encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=300, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def main():
    build, root = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    for tool in ("nginx", "openssl"):
        if shutil.which(tool) is None and not pathlib.Path("/usr/sbin", tool).exists():
            print(f"skipped: {tool} is not installed (Debian package {'nginx-light' if tool == 'nginx' else tool})")
            return SKIPPED
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    with Machine(build) as machine:
        folder = machine.directory
        machine.start_broker()
        exporter = machine.launch([machine.build / "bin/sluice-exporter", "--no-bpf", "--listen", "127.0.0.1:0", "--socket", machine.socket])
        exporter_port = re.search(r"serving http://127.0.0.1:(\d+)/", exporter.stderr.readline())[1]
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"], check=True, capture_output=True)
        secret = subprocess.run(["openssl", "passwd", "-apr1", "right"], check=True, capture_output=True, text=True).stdout
        (folder / "users").write_text(f"prometheus:{secret}")
        port = free_port()
        (folder / "nginx.conf").write_text(configuration(root, folder, exporter_port, port))
        proxy = machine.launch([nginx, "-c", folder / "nginx.conf", "-e", folder / "error.log"])

        def listening():
            assert proxy.poll() is None, f"nginx ended: {proxy.stderr.read()} {(folder / 'error.log').read_text()}"
            with socket.socket() as one:
                return one.connect_ex(("127.0.0.1", port)) == 0

        wait_until("nginx listens", listening)
        context = ssl.create_default_context(cafile=folder / "cert.pem")
        url = f"https://localhost:{port}"
        for path in ("/", "/metrics", "/snapshot.json"):
            for password in (None, "wrong"):
                status, text = ask(url + path, context, password)
                assert status == 401 and "sluice_up" not in text and "gpus" not in text, (path, status, text)
        assert "\nsluice_up 1\n" in ask(url + "/metrics", context, "right")[1]
        assert '"up":true' in ask(url + "/snapshot.json", context, "right")[1]
        status, text = ask(url + "/", context, "right")
        assert status == 200 and "<title>Sluice</title>" in text, (status, text)
        assert ask(url + "/metrics", context, "right", "POST")[0] == 403
        proxy.terminate()
        proxy.wait(20)
    print("1 passed, 0 failed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
