"""`intaglio launch`: the line, the batch script and the objects mean what they should; what cannot be is one line."""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from running import Run
from test_architecture import loaded_after

TRAIN = ["-m", "intaglio.cli.main", "train"]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe for 16 GPUs, with a name that Kubernetes would not take."""
    data = {"model": "m", "data": "rows.jsonl", "steps": 2, "device": "cuda", "parallel": {"dp": 4, "zero": 3, "tp": 4}}
    path = tmp_path / "70B Chat_v2.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


def options(words: list[str]) -> dict[str, str]:
    """torchrun's options with values."""
    return dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)


def test_the_line_of_several_machines(run: Run, recipe: Path, tmp_path: Path) -> None:
    ran = run("launch", recipe, f"out={tmp_path / 'a run'}", "data=more rows", "--nodes", 2)
    assert ran.status == 0, ran.err
    assert '"--rdzv-endpoint=$MASTER_ADDR:29500"' in ran.out  # a shell fills it in
    words = shlex.split(ran.out)
    at = words.index("-m")
    found = options(words[:at])
    assert words[0] == "torchrun"
    assert (found["nnodes"], found["nproc-per-node"], found["rdzv-backend"]) == ("2", "8", "c10d")
    assert words[at:] == [*TRAIN, str(recipe), f"out={tmp_path / 'a run'}", "data=more rows", "--go-on"]
    told = json.loads(run("launch", recipe, f"out={tmp_path / 'a run'}", "data=more rows", "--json").out)
    assert told["arguments"] == words
    assert (told["world"], told["nodes"], told["per_node"]) == (16, 2, 8)


def test_one_machine_runs_here(run: Run, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, list[str], dict[str, str]]] = []

    def become(*call: Any) -> None:
        started.append(call)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", become)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    run("launch", recipe, "out=r", "parallel.dp=1", "device=cpu", "--run", "--max-restarts", 7)
    ((program, words, environment),) = started
    assert program == words[0]
    assert words[1:4] == ["-m", "torch.distributed.run", "--standalone"]
    assert options(words[: words.index("train")]) == {"nnodes": "1", "nproc-per-node": "4", "max-restarts": "7"}
    assert environment["OMP_NUM_THREADS"] == "3"
    assert "NCCL_DEBUG" not in environment
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    run("launch", recipe, "out=r", "parallel.dp=1", "--run")
    assert started[1][2]["OMP_NUM_THREADS"] == "5"
    assert started[1][2]["NCCL_DEBUG"] == "WARN"


def test_slurm_starts_torchrun_once_on_every_machine(run: Run, recipe: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.sbatch"
    ran = run("launch", recipe, "out=a run", "--nodes", 2, "--slurm", script, "--time", "2-00:00:00")
    assert ran.out.strip() == str(script), ran.err
    asked = [line.removeprefix("#SBATCH --") for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    for wanted in ("nodes=2", "ntasks-per-node=1", "gpus-per-node=8", "time=2-00:00:00", "requeue"):
        assert wanted in asked
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, says in {
        "scontrol": "printf 'node7\\nnode9\\n'",
        "srun": 'printf "%s\\n" "$OMP_NUM_THREADS" "$@"',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{says}\n")
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[7,9]", "SLURM_JOB_ID": "20042"}
    said = subprocess.run(
        ["bash", script], env={**environment, "SLURM_CPUS_ON_NODE": "96"}, check=True, capture_output=True, text=True
    )
    threads, *words = said.stdout.splitlines()
    assert threads == "12"
    assert words[0] == "--kill-on-bad-exit=1"
    assert words[1] == "torchrun"
    found = options(words[2 : words.index("-m")])
    assert (found["rdzv-endpoint"], found["rdzv-id"], found["nproc-per-node"]) == ("node7:20042", "20042", "8")
    assert words[words.index("-m") :] == [*TRAIN, str(recipe), "out=a run", "--go-on"]


def test_without_gpus_slurm_is_asked_for_none(run: Run, recipe: Path, tmp_path: Path) -> None:
    assert run("launch", recipe, "out=r", "device=cpu", "--slurm", tmp_path / "job").status == 0
    assert "--gpus" not in (tmp_path / "job").read_text()


def objects(run: Run, recipe: Path, tmp_path: Path, *more: object) -> list[dict[str, Any]]:
    """What is written for Kubernetes."""
    path = tmp_path / "job.yaml"
    ran = run("launch", recipe, "out=a run", "--nodes", 2, "--kubernetes", path, *more)
    assert ran.status == 0, ran.err
    return list(yaml.safe_load_all(path.read_text()))


def mounted(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What lies where in a pod's one container."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    (container,) = pod["containers"]
    return {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}


def test_a_jobset_has_a_pod_for_every_machine(run: Run, recipe: Path, tmp_path: Path) -> None:
    config, job = objects(run, recipe, tmp_path, "--image", "registry/intaglio:1", "--claim", "disk")
    assert yaml.safe_load(config["data"]["recipe.yaml"]) == yaml.safe_load(recipe.read_text())
    assert (job["apiVersion"], job["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    name, spec = job["metadata"]["name"], job["spec"]
    assert name == "run-70b-chat-v2"
    (workers,) = spec["replicatedJobs"]
    pods = workers["template"]["spec"]
    assert (workers["replicas"], pods["parallelism"], pods["completions"]) == (1, 2, 2)
    assert (pods["completionMode"], pods["backoffLimit"]) == ("Indexed", 0)
    pod = pods["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["restartPolicy"], container["image"]) == ("Never", "registry/intaglio:1")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    where = mounted(pod)
    assert where[container["workingDir"]]["persistentVolumeClaim"]["claimName"] == "disk"
    assert where["/etc/intaglio"]["configMap"]["name"] == config["metadata"]["name"]
    assert where["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    for index, hosts in (("0", "1"), ("1", "0")):
        script = container["command"][2].replace("exec torchrun", "printf '%s\\n'")
        said = subprocess.run(["bash", "-c", script], env={"JOB_COMPLETION_INDEX": index}, stdout=-1, text=True)
        words = said.stdout.splitlines()
        found = options(words[: words.index("-m")])
        assert found["rdzv-conf"] == f"is_host={hosts}"
        assert found["rdzv-endpoint"] == f"{name}-workers-0-0.{spec['network']['subdomain']}:29500"
        assert words[words.index("-m") :] == [*TRAIN, "/etc/intaglio/recipe.yaml", "out=a run", "--go-on"]


def test_a_pytorchjob_has_a_worker_for_every_machine(run: Run, recipe: Path, tmp_path: Path) -> None:
    _, job = objects(run, recipe, tmp_path, "--kind", "pytorchjob", "--max-restarts", 9)
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    spec, worker = job["spec"], job["spec"]["pytorchReplicaSpecs"]["Worker"]
    assert (spec["nprocPerNode"], worker["replicas"], worker["restartPolicy"]) == ("8", 2, "OnFailure")
    elastic = spec["elasticPolicy"]
    assert (elastic["minReplicas"], elastic["maxReplicas"], elastic["maxRestarts"]) == (2, 2, 9)
    (container,) = worker["template"]["spec"]["containers"]
    assert container["name"] == "pytorch"  # the operator looks for it
    found = options(container["command"])
    assert found["rdzv-endpoint"] == f"{job['metadata']['name']}-worker-0:29500"
    assert container["ports"][0]["containerPort"] == 29500


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["out=r", "--nodes", 3], ["16 ranks", "3 x 5", "15"]),
        (["out=r", "--gpus-per-node", 5], ["16 ranks", "3 x 5"]),
        (["out=r", "--nodes", 1, "--gpus-per-node", 8], ["16 ranks", "1 x 8"]),
        (["out=r", "parallel.tpp=2"], ["tpp", "tp"]),
        (["out=r", "parallel.tp=-2"], ["parallel", "tp"]),
        (["out=r", "parallel.pp=2"], ["zero 3", "pp"]),
        (["out=r", "parallel=3"], ["parallel"]),
        (["out=r", "parallel=null"], ["parallel"]),
        ([], ["out=DIR"]),
        (["out=r", "out=s"], ["out=DIR"]),
        (["out=r", "--run"], ["--run", "2 machines"]),
        (["out=r", "--run", "--slurm", "{tmp}/f"], ["--run", "cluster"]),
        (["out=r", "--kubernetes", "{tmp}/none/../70B Chat_v2.yaml/f"], ["cannot write"]),
    ],
)
def test_refusals(run: Run, recipe: Path, tmp_path: Path, arguments: list[Any], words: list[str]) -> None:
    ran = run("launch", recipe, *[str(part).format(tmp=tmp_path) for part in arguments])
    assert all(word in ran.refusal for word in words), ran.err


def test_a_recipe_without_a_layout_is_for_one_process(run: Run, tmp_path: Path) -> None:
    plain, stages, text = tmp_path / "plain.yaml", tmp_path / "stages.yaml", tmp_path / "text.yaml"
    plain.write_text("steps: 2\n")
    stages.write_text("stages: {one: {steps: 2}}\n")
    text.write_text("nothing but words\n")
    assert "no layout" in run("launch", plain, "out=r").refusal
    assert "several recipes" in run("launch", stages, "out=r").refusal
    assert "mapping" in run("launch", text, "out=r").refusal
    assert run("launch", plain, "out=r", "parallel.dp=2").status == 0


def test_it_needs_no_torch() -> None:
    assert "torch" not in loaded_after(
        "import intaglio.cli.launch, intaglio.cli.launch_files, intaglio.cli.launch_plan"
    )
