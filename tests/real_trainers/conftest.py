from tests.helpers.systems import empty, toy_run

__all__ = ["empty", "toy_run"]
