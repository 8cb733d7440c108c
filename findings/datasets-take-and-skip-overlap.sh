#!/usr/bin/env bash
# A stream of datasets that is split by take() and skip() trains on validation samples, if more ranks train than validate.
#
# Versions: datasets 5.2.0 (PyPI).
# One would guess: take(20) are the first 20 samples and skip(20) are all others, however many read them.
# What happens: over two ranks skip(20) leaves out the first 10 samples of each rank's shards instead. If rank 0 alone validates on
#   take(20), 10 of its 20 samples are trained on, and 10 others are in neither. With four ranks it is 15 of 20.
# Source: datasets/iterable_dataset.py, SkipExamplesIterable and TakeExamplesIterable: shard_data_sources divides the number among the
#   ranks, or among the workers of a DataLoader. Which samples that means depends on how many there are.
# Why it matters: validation on one rank, or with another num_workers, is common, and the score looks too good. A job that resumes
#   with other ranks mixes the two sets in time. Split by files.
set -euo pipefail
# shellcheck source=findings/lib/setup.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib/setup.sh"

finding_venv datasets==5.2.0
cat >"$finding_folder/finding.py" <<'PYTHON'
from datasets import IterableDataset
from datasets.distributed import split_dataset_by_node


def samples(shards):
    for shard in shards:
        for sample in range(20):
            yield {"sample": shard * 20 + sample}


def read(dataset, ranks):
    return {row["sample"] for rank in range(ranks) for row in split_dataset_by_node(dataset, rank, ranks)}


stream = IterableDataset.from_generator(samples, gen_kwargs={"shards": list(range(4))})
validation = read(stream.take(20), 1)
for ranks in (1, 2, 4):
    training = read(stream.skip(20), ranks)
    print(ranks, "trains on", len(training), "of which validated", len(training & validation),
          "in neither", 80 - len(training | validation), end="; ")
PYTHON

echo "datasets 5.2.0: 80 samples in 4 shards, take(20) validated by one rank and skip(20) trained on by several"
finding_check "ranks" "$(HF_HOME=$finding_folder "$python" -W ignore "$finding_folder/finding.py" 2>"$finding_folder/log")" \
  "1 trains on 60 of which validated 0 in neither 0; 2 trains on 60 of which validated 10 in neither 10; \
4 trains on 60 of which validated 15 in neither 15; "
