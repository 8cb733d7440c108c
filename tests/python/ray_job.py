"""Jobs on Ray, as a user's script starts them: ray_job.py HOW FOLDER OPTIONS. Prints a line of JSON at the end."""

import json
import os
import pathlib
import sys
import threading
import time
import traceback

import lockstep
import lockstep.ray

import ray

HOW, FOLDER, OPTIONS = sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
PATIENCE_S = 90.0 * float(os.environ.get("LOCKSTEP_TEST_PATIENCE", "1"))
SAMPLES, BATCH = 64, 16
SMALL = {"object_store_memory": 100_000_000, "include_dashboard": False}
NAME = "job"
RUN = FOLDER / "runs" / NAME


def train(config):
    import torch
    import torch.nn.functional as F

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return SAMPLES

        def __getitem__(self, i):
            return torch.tensor([i / SAMPLES]), torch.tensor(i % 2), torch.tensor(i)

    fails = config.get("fails")
    if fails == "before":
        sys.exit(3)
    job = lockstep.init(seed=5, run_dir=config.get("run_dir"), settings={"policy.name": "full", "emulate.unit_time": config.get("unit_time", "0ms")})
    model = torch.nn.Linear(1, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    model, opt, loader = job.prepare(model, opt, torch.utils.data.DataLoader(Data(), batch_size=4, shuffle=True), epochs=config["epochs"], global_batch=BATCH)
    with open(FOLDER / f"seen-{os.getpid()}", "w", buffering=1) as seen:
        for epoch in range(config["epochs"]):
            for x, y, samples in loader:
                seen.write(json.dumps([job.rank, job.round, samples.tolist()]) + "\n")
                if job.rank == 1 and fails == "raises":
                    x / "nothing"
                if job.rank == 1 and fails == "dies":
                    os._exit(9)
                if job.rank == 1 and fails == "reports":
                    ray.train.report({"loss": 1.0})
                F.cross_entropy(model(x), y).backward()
                opt.step()
            if config.get("reports", True):
                lockstep.ray.report({"epoch": epoch, "rank": job.rank})
            if (FOLDER / "enough").exists():
                job.stop("enough")
            if job.ended_early:
                break
    if config.get("late") or fails == "after":
        job.close()
        wait_for("the end of the job in the trainer's eyes", lambda: any(RUN.glob("checkpoint_*")))
        lockstep.ray.report({"late": job.rank})
    if fails == "after" and job.rank == 1:
        x / "nothing"
    return {"rank": job.rank, "size": job.size, "sum": model.weight.sum().item()}


def rounds():
    try:
        return [json.loads(line) for line in (RUN / "rounds.jsonl").read_text().splitlines(keepends=True) if line.endswith("\n")]
    except OSError:
        return []


def wait_for(what, condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"timed out waiting for {what}")
        threading.Event().wait(0.05)


def begin():
    """One node."""
    ray.init(num_cpus=4, logging_level="warning", _temp_dir=str(FOLDER / "ray"), **SMALL)


def told(result):
    """For the test."""
    checkpoint = None if result.checkpoint is None else sorted(os.listdir(result.checkpoint.path))
    return {"metrics": result.metrics, "checkpoint": checkpoint, "path": result.path, "error": result.error and str(result.error), "value": result.return_value}


def trainer(config, function=train, **more):
    return lockstep.ray.Trainer(function, {"epochs": 3} | config, **{"storage_path": FOLDER / "runs", "name": NAME} | more)


# --- what the tests start


def whole():
    begin()
    return told(trainer(OPTIONS.get("config", {}), **OPTIONS.get("trainer", {})).fit())


def fails():
    begin()
    try:
        trainer(OPTIONS["config"], scaling=2).fit()
    except lockstep.JobFailed as error:
        return {"message": str(error), "cause": str(error.__cause__), "result": told(error.result)}


def refused():
    """Of many trainers."""
    begin()
    lines = []
    for case in OPTIONS["cases"]:
        try:
            eval(case)
            lines.append("nothing")
        except lockstep.Error as error:
            lines.append(f"{error.status} {error}")
    return lines


def node():
    """The second node is lost or drained, and a third one comes."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "resources": {"head": 1}, "temp_dir": str(FOLDER / "ray")} | SMALL)
    second = cluster.add_node(num_cpus=1, object_store_memory=SMALL["object_store_memory"])
    ray.init(address=cluster.address, logging_level="warning")
    def works(worker, after):
        return any(part["worker"] == worker for line in rounds() if line["round"] > after for part in line["contributors"])

    def change():
        wait_for("two workers", lambda: works(0, -1) and works(1, -1))
        if OPTIONS["change"] == "drain":
            from ray._raylet import GcsClient
            from ray.core.generated.autoscaler_pb2 import DrainNodeReason

            deadline = int((time.time() + 600) * 1000)
            GcsClient(address=cluster.address).drain_node(second.node_id, DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), "spot", deadline)
        else:
            cluster.remove_node(second, allow_graceful=False)
        at = len(rounds())
        if OPTIONS["scaling"][0] == 1:
            # The others go on.
            wait_for("rounds of one", lambda: len(rounds()) > at + 8 and not works(1, len(rounds()) - 4))
        cluster.add_node(num_cpus=1, object_store_memory=SMALL["object_store_memory"])
        at = len(rounds())
        wait_for("two workers again", lambda: works(1, at + 1))
        at = len(rounds())
        wait_for("a few rounds", lambda: len(rounds()) > at + 8)

    results = []

    def fit():
        try:
            more = {"scaling": tuple(OPTIONS["scaling"]), "coordinator_resources": {"CPU": 1, "head": 0.001}}
            results.append(told(trainer({"epochs": 100000, "unit_time": "10ms"}, **more).fit()))
        except BaseException as error:
            results.append({"error": traceback.format_exc(), "message": str(error)})

    thread = threading.Thread(target=fit)  # Ray adds nodes in the main thread alone
    thread.start()
    try:
        change()
    finally:
        (FOLDER / "enough").touch()
        thread.join()
        ray.shutdown()
        cluster.shutdown()
    return results[0]


def torch_trainer():
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    begin()
    config = {"epochs": 3, "reports": False, "run_dir": str(RUN)}
    result = TorchTrainer(train, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=str(FOLDER / "train"))).fit()
    return {"error": result.error and str(result.error)}


def without_group():
    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    begin()
    config = {"epochs": 3, "reports": False}
    try:
        DataParallelTrainer(train, train_loop_config=config, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=str(FOLDER / "train"))).fit()
    except Exception as error:
        return {"error": str(error)}


if __name__ == "__main__":
    result = {f.__name__: f for f in (whole, fails, refused, node, torch_trainer, without_group)}[HOW]()
    ray.shutdown()
    print(json.dumps(result), flush=True)
