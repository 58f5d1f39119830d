"""Quickstart projects: folders that run as they stand."""

from calib_serve.app.projects.kinds import KINDS, Kind
from calib_serve.app.projects.project import first_commands, project_files, write_project

__all__ = ["KINDS", "Kind", "first_commands", "project_files", "write_project"]
