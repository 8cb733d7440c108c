"""The coordinator's HTTP interface, for tools/ctl and tools/slowdown. Errors are HttpError or BadUsage: one line for people."""

import hashlib
import hmac
import http.client
import json
import os
import re
import socket

from command_line import BAD_USAGE, read_regular

SECRET_ENVIRONMENT = "LOCKSTEP_SECRET_FILE"
TIMEOUT_S = 10.0
MOST_ANSWER = 16 << 20  # bytes
SALT = b"lockstep job secret v1"  # as transport/control/secret.cc


class Failure(Exception):
    """One line for people."""


class HttpError(Failure):
    """`refused`: the coordinator refused the request; otherwise it was not reached, or there is none."""

    status = 1  # the exit status

    def __init__(self, message, refused=False):
        super().__init__(message)
        self.refused = refused


class BadUsage(Failure):
    """A file or run directory that the user named cannot be used."""

    status = BAD_USAGE


def parse_address(text):
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text}: expected HOST:PORT, IPv6 as [::1]:8080")
    return host, int(port)


def _hkdf(key, purpose):
    extracted = hmac.new(SALT, key, hashlib.sha256).digest()
    return hmac.new(extracted, purpose + b"\x01", hashlib.sha256).digest()


def key_of(secret):
    """The key for this purpose, as Secret::Derive("http") makes it of the secret file's bytes."""
    return _hkdf(_hkdf(secret, b"root"), b"http")


def proof_of(key, job_id, nonce, method, target, body):
    text = f"lockstep-http v2\n{job_id}\n{nonce}\n{method}\n{target}\n".encode() + body
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def add_arguments(parser, **more):
    """The options for the coordinator's address and for the proof of the caller; take() reads them."""
    parser.add_argument("--http", metavar="HOST:PORT", help="where the coordinator serves (its --http)", **more)
    parser.add_argument("--run-dir", metavar="DIR", help="the job's run directory on this machine, instead of --http and --secret-file: "
                        "while the job runs both are found there", **more)
    parser.add_argument("--secret-file", metavar="FILE", help="the job's secret, for changes where it has one "
                        f"(else ${SECRET_ENVIRONMENT})", **more)


def take(parser, options):
    """Fills `http` and `secret_file` from the run directory. Wrong usage ends the program."""
    options.secret_found = options.secret_file is None
    try:
        options.http, options.secret_file = _find(options.http, options.run_dir, options.secret_file)
    except ValueError as error:
        parser.error(str(error))


def connect(options):
    return Connection(options.http, options.secret_file, options.run_dir, options.secret_found)


def _find(http, run_dir, secret_file):
    """Returns the address and the secret's file (or None) that the options mean. ValueError: wrong usage; HttpError: the job has ended."""
    if http is not None and run_dir is not None:
        raise ValueError("--http and --run-dir: one of them, not both")
    if http is None and run_dir is None:
        raise ValueError("one of --http and --run-dir is required, as --http 127.0.0.1:8080 or --run-dir runs/a")
    if http is not None:
        try:
            parse_address(http)
        except ValueError as error:
            raise ValueError(f"--http {error}") from None
        return http, secret_file or os.environ.get(SECRET_ENVIRONMENT)
    address = _read_line(run_dir, "http.address")
    if address is not None:
        try:
            parse_address(address)
        except ValueError as error:
            raise ValueError(f"--run-dir {run_dir}: http.address: {error}") from None
    if address is None and os.path.exists(os.path.join(run_dir, "summary.json")):
        raise HttpError(f"the job in {run_dir} has ended")
    if address is None:
        raise ValueError(f"--run-dir {run_dir}: there is no http.address: no job runs there, or its coordinator has no --http")
    return address, secret_file or _read_line(run_dir, "secret.path")


def _read_line(run_dir, name):
    """Returns None where there is none."""
    try:
        line = read_regular(os.path.join(run_dir, name)).decode(errors="surrogateescape").partition("\n")[0]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"--run-dir {run_dir}: {name}: {error.strerror}") from None
    if not line:
        raise ValueError(f"--run-dir {run_dir}: {name}: has no line")
    return line


def read_secret(path, run_dir=None):
    """`run_dir`: the place where the path was found, if the user has not named it."""
    try:
        secret = read_regular(path, 1 << 16)
    except FileNotFoundError as error:
        if run_dir is not None:  # the launcher removes a job's secret at its end
            raise HttpError(f"the job in {run_dir} has ended, or runs on another host: its secret is not here") from None
        raise BadUsage(f"secret file {path}: {error.strerror}") from None
    except OSError as error:
        raise BadUsage(f"secret file {path}: {error.strerror}") from None
    if len(secret) < 16:
        raise BadUsage(f"secret file {path}: has {len(secret)} bytes, 16 to 65536 are expected")
    return secret


class Connection:
    """`secret_file`: only changes need it. `run_dir`: the place where the address was found, and the secret's file if `secret_found`.
    Then only the job of that directory is shown and changed: a coordinator that was killed leaves its address there, and another may
    have it now."""

    def __init__(self, address, secret_file=None, run_dir=None, secret_found=False):
        self.name = address
        self.run_dir = run_dir
        try:
            self.job_id = None if run_dir is None else _read_line(run_dir, "job.id")
        except ValueError as error:
            raise BadUsage(str(error)) from None
        self.host, self.port = parse_address(address)
        self.key = key_of(read_secret(secret_file, run_dir if secret_found else None)) if secret_file else None

    def status(self):
        answer = self._request("GET", "/status")
        if self.job_id is not None and answer.get("job_id") != self.job_id:
            raise BadUsage(f"--run-dir {self.run_dir}: its job does not run any more: another job is at {self.name}")
        return answer

    def change(self, target, text):
        """Returns the coordinator's answer."""
        if self.job_id is not None:
            self.status()
        body = text.encode(errors="replace")
        headers = {"Content-Type": "text/plain"}
        if self.key is not None:
            try:
                offered = self._request("GET", "/nonce")
            except HttpError as error:
                if not error.refused:
                    raise
                offered = None  # the job has no secret
            if offered is not None:
                # It signs only texts that look like a nonce, and only for the intended job.
                nonce, job_id = (str(offered.get(name)) for name in ("nonce", "job_id"))
                if not re.fullmatch("[0-9a-f]{64}", nonce) or not re.fullmatch("[0-9a-f]{1,64}", job_id):
                    raise HttpError(f"{self.name} offers no nonce of this version")
                if self.job_id not in (None, job_id):
                    raise BadUsage(f"--run-dir {self.run_dir}: its job does not run any more: another job is at {self.name}")
                headers["Lockstep-Nonce"] = nonce
                headers["Lockstep-Proof"] = proof_of(self.key, job_id, nonce, "POST", target, body)
        return self._request("POST", target, body, headers)["message"]

    def _request(self, method, target, body=None, headers=None):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)
        try:
            connection.connect()
            # The request has its address: the coordinator need not know its name here.
            host, port = connection.sock.getpeername()[:2]
            connection.request(method, target, body, {"Host": f"[{host}]:{port}" if ":" in host else f"{host}:{port}", **(headers or {})})
            response = connection.getresponse()
            data = response.read(MOST_ANSWER)
        except http.client.RemoteDisconnected:
            or_else = "has the job ended?" if self.run_dir else "has the job ended, or is this the address of --listen, not of --http?"
            raise HttpError(f"{self.name} has closed the connection without an answer: {or_else}") from None
        except UnicodeError:  # from encoding the name of the host
            raise BadUsage(f"--http {self.name}: that is no name of a host") from None
        except http.client.HTTPException:
            raise HttpError(f"{self.name} answers no HTTP: is this the address of --http, not of --listen?") from None
        except OSError as error:
            if self.run_dir is not None and isinstance(error, ConnectionRefusedError):
                raise HttpError(f"the job in {self.run_dir} has ended, or runs on another host: nothing answers at {self.name}") from None
            if isinstance(error, socket.timeout):
                raise HttpError(f"{self.name}: no answer within {TIMEOUT_S:.0f} s") from None
            reason = error.strerror or str(error) or type(error).__name__
            raise HttpError(f"{self.name}: {reason}") from None
        finally:
            connection.close()
        try:
            answer = json.loads(data)
        except ValueError:
            raise HttpError(f"{self.name}: no coordinator answers there") from None
        if not isinstance(answer, dict):
            raise HttpError(f"{self.name}: no coordinator answers there")
        if response.status != 200:
            raise HttpError(str(answer.get("error", f"status {response.status}")), refused=True)
        return answer
