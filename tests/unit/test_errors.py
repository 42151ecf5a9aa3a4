"""Errors are told apart by what a handler would do about them."""

import pickle

import pytest

from strandline.errors import (
    Corruption,
    DeadlineExceeded,
    LocationError,
    SchemaMismatch,
    StrandlineError,
    UnknownTable,
    UpperMismatch,
)
from strandline.location import BlobMissing


@pytest.mark.parametrize(
    "error",
    [
        Corruption("the part is damaged", object="parts/a"),
        DeadlineExceeded("too late", may_have_happened=True),
        LocationError("no answer", may_have_happened=False),
        SchemaMismatch("no column 'a'"),
        UnknownTable("no table 'a'"),
        UpperMismatch("not there", 7),
        BlobMissing("parts/a"),
    ],
)
def test_an_error_goes_through_a_pickle_whole(error: StrandlineError) -> None:
    error.add_note("on the way")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))
