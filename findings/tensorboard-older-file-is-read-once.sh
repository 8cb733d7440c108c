#!/usr/bin/env bash
# A running TensorBoard shows no more points of an event file once it has read a newer one in the same folder.
#
# Versions: tensorboard 2.21.0 (PyPI).
# One would guess: two processes that write scalars into one folder, each into its own event file, appear both, as the folder is one
#   run.
# What happens: after the newer file has been read, what is added to the older one stays out, with one warning in the log. A
#   TensorBoard that is started again shows all of it, in the order of the files: steps 0, 2, 1, 3.
# Source: tensorboard/backend/event_processing/directory_watcher.py: it goes to the next file by name and never back, and there is
#   an option --reload_multifile that is off.
# Why it matters: a job in which ranks take turns in writing loses the points of all but the newest file, and only while somebody
#   watches. The writer has to be one rank, and the next one has to begin a new file.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv tensorboard==2.21.0 setuptools==80.9.0
cat >"$finding_folder/two_writers.py" <<'PYTHON'
import sys
import time

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def add(writer, step):
    value = Summary.Value(tag="loss", simple_value=1.0 / (1 + step))
    writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=[value])))
    writer.flush()


def steps(reader):
    reader.Reload()
    return ", ".join(str(point.step) for point in reader.Scalars("loss"))


folder = sys.argv[1]
older = EventFileWriter(folder, filename_suffix=".older")
add(older, 0)
time.sleep(1.1)  # names have seconds
newer = EventFileWriter(folder, filename_suffix=".newer")
add(newer, 1)
running = EventAccumulator(folder)
print("first", steps(running), sep=": ")
add(older, 2)
add(newer, 3)
print("running", steps(running), sep=": ")
print("started again", steps(EventAccumulator(folder)), sep=": ")
PYTHON
mkdir "$finding_folder/run"
"$python" -W ignore "$finding_folder/two_writers.py" "$finding_folder/run" >"$finding_folder/output" 2>"$finding_folder/log"
seen() {
  sed -n "s/^$1: //p" "$finding_folder/output"
}

echo "tensorboard 2.21.0: steps of a tag that two files of a folder have in turn"
finding_check "both files read" "$(seen first)" "0, 1"
finding_check "two more steps, one in each file" "$(seen running)" "0, 1, 3"
finding_check "started again" "$(seen 'started again')" "0, 2, 1, 3"
