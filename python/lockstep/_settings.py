"""What a script says of the job, as INI text: the keys of docs/configuration.md."""

import configparser
from collections.abc import Mapping

from lockstep._errors import UsageError

Settings = dict[str, str]


def text_of(value: object) -> str:
    """A value as the configuration writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def checked(settings: Mapping[str, object]) -> Settings:
    """Settings that a user gives, as text."""
    result = {}
    for key, value in settings.items():
        text = text_of(value)
        if key.count(".") < 1 or any(c in key for c in " \n=[]"):
            raise UsageError(f"settings: {key!r} is not section.key, as 'policy.name'")
        if "\n" in text:
            raise UsageError(f"settings: the value of {key} has more than one line")
        result[key] = text
    return result


def to_ini(settings: Mapping[str, str]) -> str:
    """In an order of its own: the same settings are the same text on every worker."""
    sections: dict[str, list[str]] = {}
    for key in sorted(settings):
        section, name = key.rsplit(".", 1)
        sections.setdefault(section, []).append(f"{name} = {settings[key]}\n")
    return "".join(f"[{section}]\n{''.join(lines)}" for section, lines in sections.items())


def from_ini(text: str) -> Settings:
    """The job's own config, which holds every key."""
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(text)
    return {f"{section}.{key}": value for section in parser.sections() for key, value in parser.items(section)}


def differences(said: Mapping[str, str], job: Mapping[str, str]) -> list[str]:
    """Where the job is not what the script says, because its config or command line says otherwise: one line each."""
    lines = []
    for key, text in said.items():
        other = job.get(key)
        if other is not None and not _same(text, other):
            lines.append(f"{key} is {other}, as the job's config says, and not {text}, as the script does")
    return lines


def _same(a: str, b: str) -> bool:
    try:
        return float(a) == float(b)
    except ValueError:
        measure = a[:1].isdigit() and b[:1].isdigit()  # times and sizes are written in many ways
        return a == b or (measure and (a[-1:].isalpha() or b[-1:].isalpha()))
