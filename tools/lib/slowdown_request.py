"""Requests slow-downs from the coordinator of a running job, for tools/ctl and tools/slowdown."""

import control_http
from command_line import read_regular


def complete(spec, seed=None, length_s=None):
    """The spec in the form that is sent, with the seed and the length where it has none of its own. BadUsage: a file that it names
    cannot be read."""
    if spec == "none":
        return spec
    keys = {item.partition("=")[0] for item in spec.split(",")}
    if seed is not None and "seed" not in keys:
        spec += f",seed={seed}"
    if length_s is not None and "for" not in keys:
        spec += f",for={round(length_s * 1e9)}ns"
    return _with_points(spec)


def send(connection, specs):
    """Sends complete specs, all at once. Returns the coordinator's answer."""
    return connection.change("/slowdown", "\n".join(specs))


def _with_points(spec):
    """A spec in the form that is sent: a trace's file is read here, since the coordinator reads none."""
    items = spec.split(",")
    for i, item in enumerate(items):
        key, _, path = item.partition("=")
        if key != "file":
            continue
        try:
            lines = [line.partition("#")[0].split() for line in read_regular(path).decode(errors="replace").split("\n")]
        except OSError as error:
            raise control_http.BadUsage(f"slowdown file = {path}: {error.strerror}") from None
        for number, words in enumerate(lines, 1):
            if words and len(words) != 2:
                raise control_http.BadUsage(f"{path}:{number}: expected SECONDS FACTOR, as 12.5 4")
        items[i] = "points=" + ";".join(":".join(words) for words in lines if words)
    return ",".join(items)
