"""All providers.  A description is for the first one that it means."""

from kinst.fbt import Fbt
from kinst.kinst_provider import Kinst
from kinst.pid import Pid
from kinst.provider import Provider
from kinst.sdt import Sdt

PROVIDERS: tuple[Provider, ...] = (Kinst(), Fbt(), Pid(), Sdt())
