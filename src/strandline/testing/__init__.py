"""What ships for testing Strandline and adapters to it: contract suites and fault wrappers.

Nothing in the package imports it. The suites need pytest.
"""
