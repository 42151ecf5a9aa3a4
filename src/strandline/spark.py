"""Strandline on Spark: `sl.spark`. Loaded when it is first used, since pyspark takes its time.

`session` starts Spark, `import_table` imports in bulk, `compact` merges on executors, `table`
and `views` read at native speed, `register` makes `format("strandline")` known to a session.
"""

try:
    import pyspark  # noqa: F401  to see whether it is there
except ImportError as error:
    from strandline.errors import UsageError

    raise UsageError('Spark is not installed; run: pip install "strandline[spark]"') from error

from strandline.pipeline.compacting import compact, runner
from strandline.pipeline.importing import import_table
from strandline.pipeline.spark import session
from strandline.pipeline.tables import register, table, views

__all__ = ["compact", "import_table", "register", "runner", "session", "table", "views"]
