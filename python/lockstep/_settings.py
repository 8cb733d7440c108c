"""A script's settings of the job as INI text, with the keys of docs/reference/configuration.md."""

import configparser
from collections.abc import Mapping

from lockstep._errors import UsageError

Settings = dict[str, str]

# Of lockstep-worker's own models, data and computations, with what holds if nobody says otherwise: no PyTorch job uses them.
OF_LOCKSTEP_WORKER = {
    "model.name": "mlp",
    "model.widths": "256,128",
    "model.dropout": "0",
    "model.normalization": "none",
    "data.format": "idx",
    "data.path": "",
    "data.synthetic_train": "8192",
    "data.synthetic_test": "2048",
    "data.synthetic_features": "64",
    "data.synthetic_classes": "10",
    "data.augment": "none",
    "compute.precision": "fp32",
}


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


def refuse_unused(settings: Settings) -> None:
    """Of what the script of a PyTorch job says."""
    for key in settings:
        if key in OF_LOCKSTEP_WORKER:
            raise UsageError(f"settings: {key} is for lockstep-worker: of a PyTorch job model, data and precision are the script's")


def unused(job: Mapping[str, str]) -> list[str]:
    """Names the settings of the job's config or command line that have no effect, in one line each."""
    return [
        f"{key} is {job[key]}, as the job's config says, which is for lockstep-worker and changes nothing here"
        for key, text in OF_LOCKSTEP_WORKER.items()
        if not _same(text, job.get(key, text))
    ]


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
