#!/usr/bin/env bash
# A LightningCLI makes an instance of `--trainer.profiler mine.Profiler`, and takes `--trainer.strategy mine.Strategy` for the name
# of a strategy.
#
# Versions: lightning 2.6.6, jsonargparse 4.41.0, torch 2.15.0 (PyPI).
# One would guess: where the Trainer takes an object of a class or a name, the import path of a class on the command line is a class,
#   as jsonargparse's documentation shows it, and alike for each argument.
# What happens: jsonargparse tries the types in the order of the annotation. `profiler` is Profiler | str | None, `strategy` is
#   str | Strategy, so any text is a string. The Trainer then says that 'mine.strategy', in small letters, is no strategy.
#   `--trainer.strategy.class_path mine.Strategy` works. `accelerator` is a text first, too.
# Source: lightning/pytorch/trainer/trainer.py, Trainer.__init__; jsonargparse/_typehints.py, the case of Union.
# Why it matters: a strategy of one's own or of a package cannot be chosen as the other plug-ins are, and the error says nothing of
#   class_path.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python torch==2.15.0 lightning==2.6.6 'jsonargparse[signatures]==4.41.0' numpy==2.4.6
cat >"$finding_folder/mine.py" <<'PYTHON'
from lightning.pytorch.profilers import SimpleProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy


class Strategy(SingleDeviceStrategy):
    def __init__(self):
        super().__init__(device="cpu")


class Profiler(SimpleProfiler):
    pass
PYTHON
cat >"$finding_folder/script.py" <<'PYTHON'
import sys

from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.demos.boring_classes import BoringModel

off = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
try:
    trainer = LightningCLI(BoringModel, run=False, args=sys.argv[1:], trainer_defaults=off).trainer
except ValueError as error:
    print(str(error).partition(". ")[0])
else:
    print("strategy", type(trainer.strategy).__name__, "profiler", type(trainer.profiler).__name__)
PYTHON

said() {
  (cd "$finding_folder" && "$python" script.py "$@" 2>/dev/null | tail -1)
}
finding_check "lightning 2.6.6: --trainer.profiler mine.Profiler" "$(said --trainer.profiler mine.Profiler)" \
  "strategy SingleDeviceStrategy profiler Profiler"
finding_check "lightning 2.6.6: --trainer.strategy mine.Strategy" "$(said --trainer.strategy mine.Strategy)" \
  "You selected an invalid strategy name: \`strategy='mine.strategy'\`"
finding_check "lightning 2.6.6: --trainer.strategy.class_path mine.Strategy" "$(said --trainer.strategy.class_path mine.Strategy)" \
  "strategy Strategy profiler PassThroughProfiler"
