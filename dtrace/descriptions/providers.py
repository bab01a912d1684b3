"""Table of the providers of probes on instructions; a description may match several."""

from kinst.providers.fbt import Fbt
from kinst.providers.kinst_provider import Kinst
from kinst.providers.pid import Pid
from kinst.providers.provider import Provider
from kinst.providers.sdt import Sdt
from kinst.providers.usdt import Usdt

PROVIDERS: tuple[Provider, ...] = (Kinst(), Fbt(), Pid(), Sdt(), Usdt())
