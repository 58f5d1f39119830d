"""What a host needs to run this package, looked at without changing anything."""

from calib_serve.doctor.examine import examine
from calib_serve.doctor.extras import known_extras, missing
from calib_serve.doctor.finding import Asked, Finding, Level
from calib_serve.doctor.world import World

__all__ = ["Asked", "Finding", "Level", "World", "examine", "known_extras", "missing"]
