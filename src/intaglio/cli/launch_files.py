"""A run as a batch script for Slurm, and as objects for Kubernetes. No torch.

Both start torchrun once on every machine, tell it where to meet, and start it again where a machine is lost: the run
goes on from its last checkpoint (`--go-on`).
"""

import shlex
from string import Template
from typing import Any, Final

import yaml

from intaglio.cli.launch_plan import PORT, Launch
from intaglio.files import read_text

__all__ = ["kubernetes", "slurm"]

_SLURM: Final = Template("""\
#!/bin/bash
# $name: $nodes x $per_node ranks; submit it with sbatch, in a folder that all machines share
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
$gpus#SBATCH --time=$time
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@120

set -euo pipefail
mapfile -t hosts < <(scontrol show hostnames "$$SLURM_JOB_NODELIST")
export MASTER_ADDR="$${hosts[0]}"
export MASTER_PORT=$$((20000 + SLURM_JOB_ID % 20000))
cores="$${SLURM_CPUS_ON_NODE:-$per_node}"
export OMP_NUM_THREADS=$$((cores > $per_node ? cores / $per_node : 1))
${environment}
srun --kill-on-bad-exit=1 torchrun $torchrun \\
    $train
""")

_MOUNT: Final = "/mnt/run"
_RECIPES: Final = "/etc/intaglio"


def slurm(launch: Launch, time: str) -> str:
    """A script for sbatch.

    The job ends itself two minutes before its time is over: the run finishes its step and saves.

    Args:
        launch: what runs.
        time: at most, as Slurm writes it.
    """
    meeting = launch.torchrun('"$MASTER_ADDR:$MASTER_PORT"', '"$SLURM_JOB_ID"')
    return _SLURM.substitute(
        name=launch.name,
        nodes=launch.nodes,
        per_node=launch.per_node,
        gpus=f"#SBATCH --gpus-per-node={launch.per_node}\n" if launch.gpu else "",
        time=time,
        environment="".join(f"export {key}={value}\n" for key, value in launch.environment.items()),
        torchrun=" ".join(meeting),
        train=shlex.join(launch.train()),
    )


def kubernetes(launch: Launch, kind: str, image: str, claim: str) -> str:
    """The recipe as a ConfigMap, and the job.

    Args:
        launch: what runs.
        kind: `jobset` (jobset.x-k8s.io/v1alpha2) or `pytorchjob` (kubeflow.org/v1).
        image: with intaglio in it.
        claim: a persistent volume claim that all machines can write to; paths in the recipe are paths in it.
    """
    objects = [
        _recipe(launch),
        _jobset(launch, image, claim) if kind == "jobset" else _pytorchjob(launch, image, claim),
    ]
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes a text of several lines as these lines."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _recipe(launch: Launch) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{launch.name}-recipe"},
        "data": {"recipe.yaml": read_text(launch.recipe)},
    }


def _jobset(launch: Launch, image: str, claim: str) -> dict[str, Any]:
    """One job of as many pods as machines; each is reached by a name of its own.

    The first pod is told that the others meet at it: its name may not be known yet when it looks for itself.
    """
    meeting = f"{launch.name}-workers-0-0.{launch.name}:{PORT}"
    pod = _pod(launch, "trainer", image, claim, meeting)
    if launch.nodes > 1:
        first = '"--rdzv-conf=is_host=$((JOB_COMPLETION_INDEX == 0))"'
        torchrun, *arguments = pod["containers"][0]["command"]
        pod["containers"][0]["command"] = ["bash", "-c", f"exec {torchrun} {first} {shlex.join(arguments)}"]
    pods = {
        "parallelism": launch.nodes,
        "completions": launch.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", **pod}},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": launch.name},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": launch.name},
            "failurePolicy": {"maxRestarts": launch.max_restarts},
            "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": pods}}],
        },
    }


def _pytorchjob(launch: Launch, image: str, claim: str) -> dict[str, Any]:
    """The operator looks for a container of the name `pytorch`, and gives every pod a name that the others reach."""
    meeting = f"{launch.name}-worker-0:{PORT}"
    spec = _pod(launch, "pytorch", image, claim, meeting)
    spec["containers"][0]["ports"] = [{"name": "pytorchjob-port", "containerPort": PORT}]
    worker = {"replicas": launch.nodes, "restartPolicy": "OnFailure", "template": {"spec": spec}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": launch.name},
        "spec": {
            "nprocPerNode": str(launch.per_node),
            "runPolicy": {"backoffLimit": launch.max_restarts, "cleanPodPolicy": "None"},
            "elasticPolicy": {
                "rdzvBackend": "c10d",
                "minReplicas": launch.nodes,
                "maxReplicas": launch.nodes,
                "maxRestarts": launch.max_restarts,
            },
            "pytorchReplicaSpecs": {"Worker": worker},
        },
    }


def _pod(launch: Launch, name: str, image: str, claim: str, meeting: str) -> dict[str, Any]:
    """One machine: the shared folder is where it works, the recipe beside, memory for what processes share."""
    resources = {"resources": {"limits": {"nvidia.com/gpu": launch.per_node}}} if launch.gpu else {}
    return {
        "containers": [
            {
                "name": name,
                "image": image,
                "workingDir": _MOUNT,
                "command": ["torchrun", *launch.torchrun(meeting), *launch.train(f"{_RECIPES}/recipe.yaml")],
                "env": [{"name": key, "value": value} for key, value in launch.environment.items()],
                **resources,
                "volumeMounts": [
                    {"name": "run", "mountPath": _MOUNT},
                    {"name": "recipe", "mountPath": _RECIPES},
                    {"name": "shm", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "run", "persistentVolumeClaim": {"claimName": claim}},
            {"name": "recipe", "configMap": {"name": f"{launch.name}-recipe"}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
