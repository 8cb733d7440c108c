"""A worker whose stream comes from a library that shares items out by itself, for test_torch_libraries.py. usage: torch_libraries.py KEY=VALUE ...

library=NAME, one of those below. data=FOLDER: where write=1 puts the 100 items of the stream and does nothing else. save=FOLDER: what a
worker was given goes there, into WORKER.json. sharded=1 is for job.prepare, undivided=1 for how the dataset is made, split=1 has the
library share out by the launcher's variables where that is another call.
"""

import contextlib
import json
import os
import pathlib
import sys

options = dict(word.split("=", 1) for word in sys.argv[1:])
ITEMS, IN_SHARD = 100, 10
FOLDER = pathlib.Path(options["data"])
LIBRARY = options["library"]


def write():
    FOLDER.mkdir()
    if LIBRARY == "litdata":
        from litdata.streaming import Cache

        cache = Cache(str(FOLDER), chunk_size=IN_SHARD)
        for item in range(ITEMS):
            cache[item] = item
        cache.done()
        cache.merge()
    elif LIBRARY == "webdataset":
        import webdataset

        with webdataset.ShardWriter(str(FOLDER / "%02d.tar"), maxcount=IN_SHARD, verbose=0) as file:
            for item in range(ITEMS):
                file.write({"__key__": f"{item:03}", "cls": item})
    elif LIBRARY == "streaming":
        from streaming import MDSWriter

        with MDSWriter(out=str(FOLDER), columns={"item": "int"}, size_limit=1 << 8) as file:
            for item in range(ITEMS):
                file.write({"item": item})
    else:
        import datasets

        datasets.Dataset.from_dict({"item": list(range(ITEMS))}).save_to_disk(str(FOLDER))


def make():
    if LIBRARY == "litdata":
        import litdata

        return litdata.StreamingDataset(str(FOLDER)), int
    if LIBRARY == "webdataset":
        import webdataset

        stream = webdataset.WebDataset(str(FOLDER / "{00..09}.tar"), shardshuffle=False, nodesplitter=webdataset.split_by_node)
        return stream.decode(), lambda item: item["cls"]
    if LIBRARY == "streaming":
        from streaming import StreamingDataset

        return StreamingDataset(local=str(FOLDER), batch_size=10), lambda item: item["item"]
    import datasets
    from datasets.distributed import split_dataset_by_node

    stream = datasets.load_from_disk(str(FOLDER)).to_iterable_dataset(num_shards=ITEMS // IN_SHARD)
    if "split" in options:
        stream = split_dataset_by_node(stream, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    return stream, lambda item: item["item"]


def main():
    import torch
    import torch.nn.functional as F
    from torch.utils.data import DataLoader

    import lockstep

    job = lockstep.init()
    model = torch.nn.Linear(1, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.undivided() if "undivided" in options else contextlib.nullcontext():
        stream, number = make()
    loader = DataLoader(stream, batch_size=20, collate_fn=lambda items: torch.tensor([float(number(item)) for item in items]))
    model, opt, loader = job.prepare(model, opt, loader, epochs=2, samples=ITEMS, units=2, sharded="sharded" in options)
    epochs = [[], []]
    for epoch in epochs:
        for items in loader:
            epoch += map(int, items.tolist())
            F.cross_entropy(model(items[:, None] / ITEMS), items.long() % 2).backward()
            opt.step()
    (pathlib.Path(options["save"]) / f"{job.rank}.json").write_text(json.dumps(epochs))


if __name__ == "__main__":
    write() if "write" in options else main()
