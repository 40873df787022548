"""Old names of modules of redrive.aws: they work, and warn."""

from __future__ import annotations

import pytest

from redrive.aws import bundle, cloudformation, infrastructure, package


def test_the_old_name_of_the_template_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"redrive\.aws\.infrastructure is now redrive\.aws\.cloudformation"):
        assert infrastructure.template is cloudformation.template


def test_the_old_name_of_the_bundle_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"redrive\.aws\.package is now redrive\.aws\.bundle"):
        assert package.package is bundle.package


@pytest.mark.parametrize("module", [infrastructure, package])
def test_a_name_that_never_was_is_no_warning(module: object) -> None:
    with pytest.raises(AttributeError):
        module.nothing  # type: ignore[attr-defined]  # noqa: B018
