"""The contract that every method keeps, as checks to run on a method of your own."""

from softprune.testing.contract import CHECKS, ContractError, check_method

__all__ = ["CHECKS", "ContractError", "check_method"]
