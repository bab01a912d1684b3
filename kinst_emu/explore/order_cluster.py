"""Orders of a few runs, tried by the workers of a Dask cluster."""

from dataclasses import dataclass

from images import catalog
from kinst.verify.sweep.workers import check_identity
from kinst_emu.explore.exploration import Runs, for_runs, stage_of
from kinst_emu.explore.explorer import Explorer, JudgeTask, Search


@dataclass(frozen=True)
class ClusterTask(JudgeTask):
    """What is wrong with orders, on a machine that each worker makes: the kernel's file, and files
    of C, are where they are here.

    :param identity: of the kernel.
    """

    kernel: str
    modules: tuple[str, ...]
    identity: str
    runs: Runs
    memory: int
    unchecked: bool
    cpus: int | None
    search: Search

    def prepare(self) -> Explorer:
        """An explorer that has executed the serial orders.

        :raises KinstError: where the worker has no such kernel, or another one.
        """
        image = for_runs(catalog.find(self.kernel, list(self.modules)), len(self.runs.texts),
                         self.cpus)
        check_identity(image, self.identity)
        stage, judge = stage_of(image, self.runs, self.memory, unchecked=self.unchecked)
        explorer = Explorer(stage, self.search, judge)
        explorer.learn()
        return explorer
