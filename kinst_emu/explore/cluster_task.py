"""Task with which the workers of a Dask cluster execute schedules of a few runs."""

from dataclasses import dataclass

from images import catalog
from images.systems import with_disks
from kinst.verify.sweep.workers import check_identity
from kinst_emu.explore.exploration import Runs, for_runs, stage_of
from kinst_emu.explore.explorer import Explorer, JudgeTask, Search


@dataclass(frozen=True)
class ClusterTask(JudgeTask):
    """Task that judges schedules on a machine that each worker boots itself.

    The kernel and the C files must have the same paths on the workers as on this host.

    :param identity: identity of the kernel image.
    :param based: whether the base system that was fetched with the kernel is booted.
    """

    kernel: str
    modules: tuple[str, ...]
    identity: str
    runs: Runs
    based: bool
    memory: int
    unchecked: bool
    cpus: int | None
    search: Search

    def prepare(self) -> Explorer:
        """Boot the kernel and return an explorer that has executed the serial schedules.

        :raises KinstError: the worker does not have this kernel.
        """
        image = with_disks(catalog.find(self.kernel, list(self.modules)), [], self.based)
        image = for_runs(image, len(self.runs.texts), self.cpus)
        check_identity(image, self.identity)
        stage, judge = stage_of(image, self.runs, self.memory, unchecked=self.unchecked)
        explorer = Explorer(stage, self.search, judge)
        explorer.learn()
        return explorer
