"""A plain model of a store, and random calls that compare a store with it. Needs Hypothesis."""

from tests.support.store_model.suite import StoreModel

__all__ = ["StoreModel"]
