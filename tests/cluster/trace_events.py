"""The part of the Trace Event Format that timeline.json uses, as Perfetto and Chrome's about:tracing read it, written down so that a
timeline can be held to it. After the format's description ("Trace Event Format", Google) and Perfetto's FAQ: of X events on one track
each lies in another or apart from it; those that overlap otherwise are drawn wrong, or not at all.
"""

import collections
import json
import math


def _is_id(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _is_text(value):
    return isinstance(value, str) and value != ""


def _is_microseconds(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


_EVERYWHERE = {"name": _is_text, "ph": _is_text, "pid": _is_id, "tid": _is_id}
# By phase: what an event has to have beside those, and what it may have.
_PHASES = {
    "X": ({"ts": _is_microseconds, "dur": _is_microseconds}, {"args": lambda value: isinstance(value, dict)}),  # complete
    "i": ({"ts": _is_microseconds, "s": lambda value: value in ("g", "p", "t")}, {"args": lambda value: isinstance(value, dict)}),  # instant
    "M": ({"args": lambda value: isinstance(value, dict)}, {}),  # metadata
}
_METADATA = {
    "process_name": {"name": _is_text},
    "thread_name": {"name": _is_text},
    "thread_sort_index": {"sort_index": lambda value: isinstance(value, int)},
}
_DOCUMENT = {"displayTimeUnit": lambda value: value in ("ms", "ns"), "traceEvents": lambda value: isinstance(value, list)}


def _check_fields(where, fields, required, optional=None):
    for key, is_right in required.items():
        if key not in fields:
            yield f"{where} has no {key}"
        elif not is_right(fields[key]):
            yield f"{where}: {key} is {fields[key]!r}"
    for key, value in fields.items():
        if key in (optional or {}):
            if not optional[key](value):
                yield f"{where}: {key} is {value!r}"
        elif key not in required:
            yield f"{where}: {key} is no field of it"


def _check_event(index, event):
    where = f"event {index}"
    if not isinstance(event, dict):
        yield f"{where} is {event!r}"
        return
    where += f" ({event.get('name')})"
    phase = event.get("ph")
    if phase not in _PHASES:
        yield f"{where}: ph is {phase!r}"
        return
    required, optional = _PHASES[phase]
    yield from _check_fields(where, event, _EVERYWHERE | required, optional)
    if phase == "M":
        known = _METADATA.get(event.get("name"))
        if known is None:
            yield f"{where} is no metadata that is read"
        elif isinstance(event.get("args"), dict):
            yield from _check_fields(where + " args", event["args"], known)


def _check_nesting(events):
    tracks = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], -event["dur"], event["name"]))
    for track, spans in tracks.items():
        around = []  # (end, name) of those that are open
        for start, minus_duration, name in sorted(spans):
            end = start - minus_duration
            while around and around[-1][0] <= start:
                around.pop()
            if around and end > around[-1][0]:
                yield f"track {track}: {name} [{start}, {end}] begins in {around[-1][1]} and ends behind its end, {around[-1][0]}"
            around.append((end, name))


def _check_names(events):
    """Each track has one name, before what is on it."""
    named = set()
    for event in events:
        track = event["pid"], event["tid"]
        if event["ph"] == "M" and event["name"] == "thread_name":
            if track in named:
                yield f"track {track} is named twice"
            named.add(track)
        elif event["ph"] != "M" and track not in named:
            yield f"track {track} has no name when {event['name']} comes"
            named.add(track)


def faults(text):
    """All that is wrong with the document, in words; none: it is one that Perfetto reads."""
    def refuse(word):
        raise ValueError(f"{word} is no JSON")
    try:
        document = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return [f"it is no JSON: {error}"]
    if not isinstance(document, dict):
        return ["it is no JSON object"]
    found = list(_check_fields("the document", document, _DOCUMENT))
    if not found:
        events = document["traceEvents"]
        for index, event in enumerate(events):
            found += _check_event(index, event)
        if not found:
            found = [*_check_names(events), *_check_nesting(events)]
    return found
