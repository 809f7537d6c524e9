from tests.helpers.systems import empty, one_run, toy_run

__all__ = ["empty", "one_run", "toy_run"]
