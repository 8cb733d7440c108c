"""What examples/ deploys with: the manifests for Kubernetes, the Dockerfiles and the scripts for Slurm, as far as can be seen without a
cluster. The keys are held to a list of our own, which was written from the APIs' references; no cluster's schema is at hand. That jobs run
and outlive their coordinator is tests/cluster/test_deployments.py's, and a real Slurm test_slurm.py's.

usage: deploy_test.py ROOT
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

try:
    import yaml
except ImportError:
    yaml = None

ROOT = None
STRING, NUMBER, BOOL = "a text", "a whole number", "true or false"

# What is allowed where: a dictionary by key ("*": any), [what each element is], or a kind of value.
CONTAINER = {
    "name": STRING, "image": STRING, "command": [STRING], "args": [STRING],
    "env": [{"name": STRING, "value": STRING, "valueFrom": {"fieldRef": {"fieldPath": STRING}}}],
    "ports": [{"name": STRING, "containerPort": NUMBER}],
    "resources": {"requests": {"*": STRING}, "limits": {"*": STRING}},
    "volumeMounts": [{"name": STRING, "mountPath": STRING, "readOnly": BOOL}], "readinessProbe": {"tcpSocket": {"port": NUMBER}},
}
POD = {
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": STRING, "labelSelector": {
        "matchExpressions": [{"key": STRING, "operator": STRING, "values": [STRING]}]}}]}},
    "restartPolicy": STRING, "terminationGracePeriodSeconds": NUMBER,
    "securityContext": {"runAsNonRoot": BOOL, "runAsUser": NUMBER, "runAsGroup": NUMBER, "fsGroup": NUMBER},
    "containers": [CONTAINER], "initContainers": [CONTAINER],
    "volumes": [{"name": STRING, "secret": {"secretName": STRING, "defaultMode": NUMBER}, "configMap": {"name": STRING},
                 "persistentVolumeClaim": {"claimName": STRING}}],
}
JOB = {
    "parallelism": NUMBER, "completions": NUMBER, "completionMode": STRING, "backoffLimit": NUMBER, "backoffLimitPerIndex": NUMBER,
    "podFailurePolicy": {"rules": [{"action": STRING, "onExitCodes": {"containerName": STRING, "operator": STRING, "values": [NUMBER]},
                                    "onPodConditions": [{"type": STRING, "status": STRING}]}]},
    "template": {"spec": POD},
}
METADATA = {"name": STRING}
JOBSET = {
    "network": {"enableDNSHostnames": BOOL, "subdomain": STRING},
    "successPolicy": {"operator": STRING, "targetReplicatedJobs": [STRING]},
    "failurePolicy": {"maxRestarts": NUMBER, "rules": [{"name": STRING, "action": STRING, "onJobFailureReasons": [STRING]}]},
    "replicatedJobs": [{"name": STRING, "replicas": NUMBER, "dependsOn": [{"name": STRING, "status": STRING}],
                        "template": {"metadata": {"labels": {"*": STRING}}, "spec": JOB}}],
}
KINDS = {
    ("v1", "ConfigMap"): {"metadata": METADATA, "data": {"*": STRING}},
    ("v1", "PersistentVolumeClaim"): {"metadata": METADATA, "spec": {"accessModes": [STRING], "resources": {"requests": {"*": STRING}}}},
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {"metadata": METADATA, "spec": JOBSET},
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): {"metadata": {"name": STRING, "labels": {"*": STRING}}, "spec": {
        "mlPolicy": {"numNodes": NUMBER}, "template": {"spec": JOBSET}}},
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): {"metadata": METADATA, "spec": {
        "runtimeRef": {"name": STRING}, "trainer": {"image": STRING, "command": [STRING], "numNodes": NUMBER,
                                                    "resourcesPerNode": {"requests": {"*": STRING}, "limits": {"*": STRING}}}}},
}
TYPES = {STRING: str, NUMBER: int, BOOL: bool}


def mistakes(value, schema, where=""):
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{where}: is no mapping"]
        found = [f"{where}.{key}: is not known" for key in value if key not in schema and "*" not in schema]
        return found + [one for key, inner in value.items() if key in schema or "*" in schema
                        for one in mistakes(inner, schema.get(key, schema.get("*")), f"{where}.{key}")]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where}: is no list"]
        return [one for number, inner in enumerate(value) for one in mistakes(inner, schema[0], f"{where}[{number}]")]
    good = isinstance(value, TYPES[schema]) and (schema == BOOL or not isinstance(value, bool))
    return [] if good else [f"{where}: is not {schema}"]


@unittest.skipIf(yaml is None, "this Python has no yaml (Debian: python3-yaml)")
class KubernetesTest(unittest.TestCase):
    def manifests(self):
        for path in sorted((ROOT / "examples/kubernetes").glob("*.yaml")):
            yield path.name, list(yaml.safe_load_all(path.read_text()))

    @staticmethod
    def of_kubeflow():
        return list(yaml.safe_load_all((ROOT / "examples/kubeflow/trainer.yaml").read_text()))

    def test_the_parts_for_kubeflow_fit_together(self):
        runtime, claim, job = self.of_kubeflow()
        self.assertEqual(job["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"])
        jobset = runtime["spec"]["template"]["spec"]
        coordinator, node = jobset["replicatedJobs"]
        self.assertEqual((jobset["successPolicy"]["targetReplicatedJobs"], node["dependsOn"][0]["name"]), ([coordinator["name"]], coordinator["name"]))
        # Kubeflow takes the nodes by this label, and their container by this name.
        self.assertEqual(node["template"]["metadata"]["labels"], {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"})
        (server,), (worker,) = (one["template"]["spec"]["template"]["spec"]["containers"] for one in (coordinator, node))
        self.assertEqual(worker["name"], "node")
        workers = job["spec"]["trainer"]["numNodes"]
        self.assertEqual(workers, runtime["spec"]["mlPolicy"]["numNodes"])
        self.assertIn(f"--workers {workers} ", server["args"][0])
        port = re.search(r'--listen "\$POD_IP:(\d+)"', server["args"][0])[1]
        told = {one["name"]: one.get("value") for one in worker["env"]}
        self.assertEqual(told["LOCKSTEP_COORDINATOR"], f"$(JOB)-{coordinator['name']}-0-0.$(JOB):{port}")
        self.assertEqual((server["ports"][0]["containerPort"], server["readinessProbe"]["tcpSocket"]["port"]), (int(port), int(port)))
        self.assertLess(list(told).index("JOB"), list(told).index("LOCKSTEP_COORDINATOR"))  # or it is no value yet
        self.check_restarts(coordinator["template"]["spec"])
        volumes = coordinator["template"]["spec"]["template"]["spec"]["volumes"]
        self.assertEqual([one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one], [claim["metadata"]["name"]])

    def test_the_task_of_skypilot_tells_each_node_its_place(self):
        task = yaml.safe_load((ROOT / "examples/skypilot/lockstep.yaml").read_text())
        with tempfile.TemporaryDirectory() as folder:
            python = Path(folder) / "python"
            python.write_text('#!/bin/sh\necho $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT, $LOCAL_WORLD_SIZE here: "$@"\n')
            python.chmod(0o755)
            given = {"PATH": f"{folder}:/usr/bin:/bin", "SKYPILOT_NODE_RANK": "3", "SKYPILOT_NUM_NODES": "4",
                     "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8\n10.0.0.9\n10.0.0.6"}
            done = subprocess.run(["bash", "-c", task["run"]], env=given, capture_output=True, text=True, check=True)
        self.assertEqual((done.stdout, task["num_nodes"]), ("3 of 4 at 10.0.0.7:29500, 1 here: -u train.py\n", 4))

    def test_each_key_is_one_of_its_kind(self):
        for name, documents in [*self.manifests(), ("trainer.yaml", self.of_kubeflow())]:
            for document in documents:
                kind = (document.pop("apiVersion"), document.pop("kind"))
                self.assertEqual(mistakes(document, KINDS[kind], f"{name}: {kind[1]}"), [])

    def test_a_mistake_is_seen(self):
        for value, schema, message in (({"nam": "x"}, METADATA, ".nam: is not known"), ({"name": 1}, METADATA, ".name: is not a text"),
                                       ({"parallelism": "4"}, JOB, ".parallelism: is not a whole number"),
                                       ({"podFailurePolicy": {"rules": {}}}, JOB, ".podFailurePolicy.rules: is no list")):
            self.assertEqual(mistakes(value, schema), [message])

    def test_the_parts_fit_together(self):
        for name, documents in self.manifests():
            with self.subTest(name):
                (jobset,) = (document for document in documents if document["kind"] == "JobSet")
                made = {document["metadata"]["name"] for document in documents}
                spec = jobset["spec"]
                jobs = {job["name"]: job["template"]["spec"] for job in spec["replicatedJobs"]}
                coordinators = ["coordinator", "standby"] if name == "standby.yaml" else ["coordinator"]
                self.assertEqual(set(jobs), {*coordinators, "worker"})
                self.assertEqual(spec["successPolicy"], {"operator": "Any" if name == "standby.yaml" else "All", "targetReplicatedJobs": coordinators})
                workers = jobs["worker"]
                self.assertEqual(workers["parallelism"], workers["completions"])
                pods = {job: it["template"]["spec"] for job, it in jobs.items()}
                (coordinator,), (worker,) = (pods[job]["containers"] for job in ("coordinator", "worker"))
                script = coordinator["args"][0]
                self.assertIn(f"--workers {workers['parallelism']} ", script)
                # By the name that the headless service gives the coordinator's pod, at the port where it listens.
                port = re.search(r'--listen "\$POD_IP:(\d+)"', script)[1]
                address = f"{jobset['metadata']['name']}-coordinator-0-0.{spec['network']['subdomain']}:{port}"
                self.assertEqual([one["containerPort"] for one in coordinator["ports"]], [int(port)])
                told = [*" ".join(worker.get("args", ())).split(), *(one.get("value") for one in worker["env"])]
                if name == "standby.yaml":  # the leader's, and the two find each other by their names
                    self.assertIn('--coordinator="$(cat /runs/job/coordinator.address)"', " ".join(worker["args"]))
                    self.assertIn(f'"{address.replace("-coordinator-", "-$other-")}"', script)
                    self.assertEqual(jobs["standby"], jobs["coordinator"])
                else:
                    self.assertTrue(f"--coordinator={address}" in told or address in told, told)
                for pod in pods.values():
                    self.assertEqual(pod["restartPolicy"], "Never")  # podFailurePolicy wants that
                    volumes = {volume["name"]: volume for volume in pod["volumes"]}
                    self.assertEqual(volumes["secret"]["secret"]["defaultMode"], 0o400)
                    (container,) = pod["containers"]
                    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
                    self.assertEqual(set(mounts), set(volumes))
                    self.assertIn(f"{mounts['secret']}/secret", str(container))
                    for volume in volumes.values():
                        for kind, key in (("configMap", "name"), ("persistentVolumeClaim", "claimName")):
                            if kind in volume:
                                self.assertIn(volume[kind][key], made)
                for job, it in jobs.items():
                    by_status = {status: rule["action"] for rule in it["podFailurePolicy"]["rules"] for status in rule.get("onExitCodes", {"values": []})["values"]}
                    self.assertEqual(by_status, {2: "FailJob", 3: "Ignore"} if job == "worker" else {2: "FailJob", 1: "FailIndex", 130: "FailIndex"})
                    for rule in it["podFailurePolicy"]["rules"]:
                        named = pods[job]["containers"][0]["name"]
                        self.assertEqual(rule.get("onExitCodes", {}).get("containerName", named), named)
                self.check_restarts(jobs["coordinator"])
                # A job that has failed is started anew, a mistake is not.
                self.assertEqual([(rule["action"], rule["onJobFailureReasons"]) for rule in spec["failurePolicy"]["rules"]], [("FailJobSet", ["PodFailurePolicy"])])

    def check_restarts(self, coordinator):
        """A coordinator that dies gets a new pod under the old name; FailIndex takes both of these."""
        self.assertGreater(coordinator["backoffLimitPerIndex"], 0)
        self.assertNotIn("backoffLimit", coordinator)
        self.assertEqual((coordinator["completionMode"], coordinator["completions"]), ("Indexed", 1))
        rules = coordinator["podFailurePolicy"]["rules"]
        # The first rule that fits counts: what a drained coordinator says comes before that its node is drained.
        self.assertEqual([rule["action"] for rule in rules], ["FailJob", "FailIndex", "Ignore"])
        self.assertEqual(rules[2]["onPodConditions"], [{"type": "DisruptionTarget", "status": "True"}])

    def script(self, job, folder, programs, manifest="jobset.yaml"):
        """That of a pod, with these in the place of its programs, and <folder>/runs for its volume."""
        (jobset,) = (document for document in dict(self.manifests())[manifest] if document["kind"] == "JobSet")
        (template,) = (one["template"] for one in jobset["spec"]["replicatedJobs"] if one["name"] == job)
        (container,) = template["spec"]["template"]["spec"]["containers"]
        for name, text in programs.items():
            (folder / name).write_text(f"#!/bin/bash\n{text}\n")
            (folder / name).chmod(0o755)
        return subprocess.Popen([*container["command"], container["args"][0].replace("/runs/", f"{folder}/runs/")], stdout=subprocess.PIPE, text=True,
                                env={"PATH": f"{folder}:/usr/bin:/bin", "INDEX": "3", "POD_IP": "10.0.0.9", "ROLE": job})

    def test_a_worker_that_is_told_to_end_is_not_done(self):
        with tempfile.TemporaryDirectory() as folder:
            for status in (0, 1, 2, 3):
                worker = self.script("worker", Path(folder), {"lockstep-worker": f'echo "$@"; exit {status}'})
                self.assertIn("--id=3 ", worker.communicate()[0])
                self.assertEqual(worker.returncode, status)
            # As it ends where it is told to.
            worker = self.script("worker", Path(folder), {"lockstep-worker": 'trap "kill \\$!; exit 0" TERM; echo runs; sleep 60 & wait'})
            self.assertEqual(worker.stdout.readline(), "runs\n")
            worker.terminate()
            worker.stdout.close()
            self.assertEqual(worker.wait(), 143)

    def test_a_coordinator_goes_on_by_what_its_folder_has(self):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder, "runs/job")

            def start():
                coordinator = self.script("coordinator", Path(folder), {"lockstep-coordinator": 'echo "$@"'})
                self.assertEqual(coordinator.wait(), 0)
                with coordinator.stdout as said:
                    return said.read().split()[-1]

            self.assertEqual(start(), "--reattach")
            (run / "checkpoints").mkdir(parents=True)
            (run / "rounds.jsonl").write_text("{}\n")
            self.assertEqual(start(), "--reattach")  # it was lost before its first checkpoint: the workers hold the parameters
            (run / "summary.json").write_text("{}\n")
            self.assertEqual(start(), "--reattach")  # that job has ended without a checkpoint: a new one
            self.assertFalse(run.exists())
            (kept,) = Path(folder, "runs").glob("job.lost-*")
            self.assertTrue((kept / "rounds.jsonl").exists())
            (run / "checkpoints").mkdir(parents=True)
            (run / "checkpoints/12.json").write_text("{}\n")
            self.assertEqual(start(), "--reattach")
            (run / "summary.json").write_text("{}\n")
            self.assertEqual(start(), "--resume")
            self.assertTrue(run.exists())

    def test_of_two_coordinators_the_one_that_comes_too_late_follows(self):
        """The standby takes the folder between the look at its lock and the start."""
        taken = "exec 9>{0}/runs/job/lock; flock -n 9; sleep 60 >&- 2>&- & echo $! >{0}/holder; exit {1}"
        for status in (1, 2):
            with self.subTest(status), tempfile.TemporaryDirectory() as folder:
                fake = f'[[ $* == *--standby* ]] && echo follows "$@" && exit 1\n' + taken.format(folder, status)
                coordinator = self.script("coordinator", Path(folder), {"lockstep-coordinator": fake}, "standby.yaml")
                self.assertRegex(coordinator.communicate()[0], r"^follows .*--standby --follow lockstep-standby-0-0.lockstep:7070\n$")
                self.assertEqual(coordinator.wait(), 4)  # it could not, and the job goes on
                os.kill(int(Path(folder, "holder").read_text()), signal.SIGKILL)

    def test_programs_know_their_options(self):
        known = {
            "lockstep-coordinator": (ROOT / "coordinator/shell/main.cc").read_text() + (ROOT / "base/program_options.cc").read_text(),
            "lockstep-worker": (ROOT / "worker/program/main.cc").read_text() + (ROOT / "base/program_options.cc").read_text(),
        }
        for name, documents in self.manifests():
            (jobset,) = (document for document in documents if document["kind"] == "JobSet")
            for job in jobset["spec"]["replicatedJobs"]:
                for container in job["template"]["spec"]["template"]["spec"]["containers"]:
                    text = " ".join([*container["command"], *container.get("args", [])])
                    for program, source in known.items():
                        if program in text:
                            for option in re.findall(r"--([a-z-]+)(?=[= \n)])", text):
                                self.assertIn(f'"{option}', source, f"{name}: {program} --{option}")


class DockerTest(unittest.TestCase):
    def test_what_is_copied_and_built_is_there(self):
        presets = (ROOT / "CMakePresets.json").read_text()
        for path in sorted((ROOT / "examples/containers").glob("Dockerfile*")):
            text = path.read_text()
            with self.subTest(path.name):
                for source in re.findall(r"^COPY (?!--from)(\S+)", text, re.MULTILINE):
                    self.assertTrue((ROOT / source).exists(), source)
                (preset,) = re.findall(r"cmake --preset (\S+)", text)
                self.assertIn(f'"name": "{preset}"', presets)
                self.assertEqual(set(re.findall(r"build/(\w+)", text)), {preset})
                self.assertIn("\nUSER lockstep\n", text)
                for ran in re.findall(r"RUN (tools/\S+)", text):
                    self.assertIn(f"COPY {ran} {ran}", text)
        self.assertIn("build", (ROOT / ".dockerignore").read_text().splitlines())


class SlurmTest(unittest.TestCase):
    def test_the_scripts_are_sound(self):
        for path in sorted((ROOT / "examples/slurm").glob("*.sbatch")):
            with self.subTest(path.name):
                subprocess.run(["bash", "-n", path], check=True)
                done = subprocess.run(["bash", path], capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"})
                self.assertNotEqual(done.returncode, 0)
                self.assertEqual(done.stdout, "")
                self.assertIn("to be started by sbatch", done.stderr)


if __name__ == "__main__":
    ROOT = Path(sys.argv.pop(1)).resolve()
    unittest.main()
