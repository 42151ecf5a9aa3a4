"""What may be asked of a shard's state, and what comes out. `decide` answers, `replay` follows.

A command is plain data and may be evaluated many times, on newer and newer states, until its
record is in the log: it never contains anything that depends on the commit's time.

Each module here has the commands whose transitions are in the module of the same name in
`strandline.state`. All others import them from here.
"""

from strandline.state.commands import (
    clocks,
    collecting,
    command,
    committing,
    holding,
    placing,
    registering,
    sessions,
)
from strandline.state.commands.clocks import *  # noqa: F403  # what it has, it names
from strandline.state.commands.collecting import *  # noqa: F403  # what it has, it names
from strandline.state.commands.command import *  # noqa: F403  # what it has, it names
from strandline.state.commands.committing import *  # noqa: F403  # what it has, it names
from strandline.state.commands.holding import *  # noqa: F403  # what it has, it names
from strandline.state.commands.placing import *  # noqa: F403  # what it has, it names
from strandline.state.commands.registering import *  # noqa: F403  # what it has, it names
from strandline.state.commands.sessions import *  # noqa: F403  # what it has, it names

__all__: list[str] = []
__all__ += clocks.__all__
__all__ += collecting.__all__
__all__ += command.__all__
__all__ += committing.__all__
__all__ += holding.__all__
__all__ += placing.__all__
__all__ += registering.__all__
__all__ += sessions.__all__
