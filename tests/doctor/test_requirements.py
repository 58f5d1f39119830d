"""Requirements are read, and versions compared, as the ``packaging`` library does it."""

from __future__ import annotations

from importlib.metadata import requires

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from packaging.requirements import Requirement as TheirRequirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from calib_serve.doctor.requirement import Requirement, meets

numbers = st.integers(0, 3).map(str)
releases = st.lists(numbers, min_size=1, max_size=4).map(".".join)
stages = st.sampled_from(["", "a1", "b2", "rc1", "-beta.1", ".dev3", "rc1.dev1"])
posts = st.sampled_from(["", ".post1", "-1", ".post2.dev1"])
public = st.builds("".join, st.tuples(st.sampled_from(["", "1!"]), releases, stages, posts)).filter(
    lambda v: v.count("dev") < 2 and "dev3.post" not in v and "dev3-" not in v and "dev1.post" not in v
    and "dev1-" not in v
)  # fmt: skip
installed = st.builds("".join, st.tuples(public, st.sampled_from(["", "+cpu", "+cu128.1"])))
orders = st.builds("{}{}".format, st.sampled_from(["==", "!=", ">=", "<="]), public)
# Of whole releases: what is below 1.0.post1 or above 1.0a1, the versions of packaging do not agree on.
strict = st.builds("{}{}".format, st.sampled_from(["<", ">"]), releases)
wildcards = st.builds("{}{}.*".format, st.sampled_from(["==", "!="]), releases)
compatible = st.builds("~={}.{}".format, releases, numbers)


@given(installed, st.lists(st.one_of(orders, strict, wildcards, compatible), max_size=3).map(",".join))
@example("2.13.0+cpu", ">=2.4")
@example("2.0rc1", "<2.0")
@example("2.0.post1", ">2.0")
@example("0.12", "==0.12.0")
def test_a_version_meets_what_it_meets_by_packaging(version: str, wanted: str) -> None:
    assert meets(version, wanted) is SpecifierSet(wanted).contains(version, prereleases=True)


def test_every_line_of_our_own_metadata_is_read_as_packaging_reads_it() -> None:
    lines = requires("calib-serve") or []
    assert len(lines) > 50
    for line in lines:
        ours, theirs = Requirement.read(line), TheirRequirement(line)
        assert ours.name == canonicalize_name(theirs.name)
        assert SpecifierSet(ours.versions) == theirs.specifier
        for extra in ("", "fit", "watch"):
            applies = theirs.marker is None or theirs.marker.evaluate({"extra": extra})
            assert ours.applies(extra, (3, 11, 0)) is applies, line


@pytest.mark.parametrize(
    ("line", "python", "applies"),
    [
        ("numpy<2; python_version < '3.12'", (3, 11, 7), True),
        ("numpy<2; python_version < '3.9'", (3, 10, 0), False),
        ('numpy>=2; python_version>="3.9" and extra == "Fit"', (3, 11, 0), False),
        ("numpy<2; sys_platform == 'win32'", (3, 11, 0), None),
        ("numpy (<2)", (3, 11, 0), True),
    ],
)
def test_a_marker_that_is_not_known_is_not_guessed(
    line: str, python: tuple[int, ...], applies: bool | None
) -> None:
    assert Requirement.read(line).applies("", python) is applies


@pytest.mark.parametrize("bad", ["=== 2", "newest", ">= two", "2.0"])
def test_what_is_no_comparison_is_an_error_not_a_yes(bad: str) -> None:
    with pytest.raises(ValueError, match=r"no (comparison|version)"):
        meets("2.0", bad)
