#!/usr/bin/env bash
# Spark gives up a barrier stage at its first lost task, if the results go to the driver.
#
# Versions: pyspark 3.5.8 (PyPI), java 17.
# One would guess: the guide says that when a barrier task fails, Spark starts all tasks of the stage again.
# What happens: it does so only before a shuffle. collect() of a barrier stage fails at the first task that is lost, whatever
#   spark.task.maxFailures and spark.stage.maxConsecutiveAttempts say; the same stage without barrier() is cured.
# Source: core/.../scheduler/DAGScheduler.scala, handleTaskCompletion(): of a failed barrier stage a ShuffleMapStage is submitted
#   again, a ResultStage is aborted with "Could not recover from a failed barrier ResultStage".
# Why it matters: distributed training is such a stage. One lost executor ends it, unless the driver starts the job again itself.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_python pyspark==3.5.8
cat >"$finding_folder/barrier.py" <<'PYTHON'
import os
import signal
import sys

from pyspark import TaskContext
from pyspark.sql import SparkSession

how, folder = sys.argv[1:]
builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").config("spark.local.dir", folder)
context = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate().sparkContext
context.setLogLevel("OFF")


def work(numbers):
    """Partition 0 loses its process once."""
    if TaskContext.get().partitionId() == 0:
        with open(f"{folder}/starts", "a") as starts:
            starts.write("x")
        if os.path.getsize(f"{folder}/starts") == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    yield sum(numbers)


numbers = context.parallelize(range(10), 2)
stage = (numbers.barrier() if "barrier" in how else numbers).mapPartitions(work)
stage = stage.repartition(1) if "shuffle" in how else stage
try:
    result = f"sum {sum(stage.collect())}"
except Exception as error:
    text = str(error.java_exception.getMessage())
    result = "failed" if "Could not recover from a failed barrier ResultStage" in text else text
print(f"{result}, {os.path.getsize(f'{folder}/starts')} starts of task 0")
context.stop()
PYTHON

# outcome: how the stage is made.
outcome() {
  local folder
  folder=$(mktemp -d "$finding_folder/XXXXXX")
  PYSPARK_PYTHON=$python "$python" "$finding_folder/barrier.py" "$1" "$folder" 2>"$folder/log" || {
    cat "$folder/log" >&2
    return 1
  }
}

echo "pyspark 3.5.8: task 0 loses its process once"
finding_check "without barrier()" "$(outcome plain)" "sum 45, 2 starts of task 0"
finding_check "barrier() before a shuffle" "$(outcome barrier-shuffle)" "sum 45, 2 starts of task 0"
finding_check "barrier(), results to the driver" "$(outcome barrier)" "failed, 1 starts of task 0"
