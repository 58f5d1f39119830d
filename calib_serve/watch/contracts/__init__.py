"""How the promises of contracts stand: kept, broken or not yet known, at every moment."""

from calib_serve.watch.contracts.states import (
    BURN_WINDOWS,
    Burn,
    ClauseState,
    ContractFollower,
    contract_states,
)

__all__ = ["BURN_WINDOWS", "Burn", "ClauseState", "ContractFollower", "contract_states"]
