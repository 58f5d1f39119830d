"""Mutation tests: the code, and the alerts, are broken on purpose, and some test has to see it."""
