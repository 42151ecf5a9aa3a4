"""Spark is loaded when it is used, and asked for by name where it is missing."""

import subprocess
import sys


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_package_loads_spark_when_it_is_first_asked_for() -> None:
    code = """
import sys, strandline as sl
before = "pyspark" in sys.modules
sl.spark.import_table
print(before, "pyspark" in sys.modules)
"""
    assert run(code) == "False True"


def test_without_spark_the_error_says_how_to_get_it() -> None:
    code = """
import sys
sys.modules["pyspark"] = None
import strandline as sl
try:
    sl.spark.session()
except sl.UsageError as error:
    print(error)
"""
    assert run(code) == 'Spark is not installed; run: pip install "strandline[spark]"'


def test_other_names_are_missing_as_always() -> None:
    assert run("import strandline as sl; print(hasattr(sl, 'sparks'))") == "False"
