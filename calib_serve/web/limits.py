"""Bounds of the servers, each with what set it: past them a proxy, or another process, carries more."""


class Limits:
    """Bounds of a watch and a gateway, whose numbers no option changes."""

    CONNECTIONS = 512
    """At a time; others are answered 503. Half of the files that Linux lets a process open by default."""
    SECONDS = 30.0
    """In which a request, with its body, must have come: 64 MiB at 18 Mbit a second."""
    LARGEST = 4 << 20
    """Bytes of a body of a watch: 10,000 items of 400 bytes."""
    WAITING = 32
    """Requests of a watch at work or in line, of which each may hold a body; one more is answered 429."""
    GATEWAY_WAITING = 256
    """Requests of a gateway at work; one more is answered 429, or RESOURCE_EXHAUSTED."""
    IN_LINE = 4.0
    """Seconds in line: with what a request then waits for the ledger, less than clients wait."""
    LEDGER_ASKED = 1.0
    """Seconds for which what /healthz found of the ledger is told again."""
    VERSIONS = 200
    """With series of their own: 138 each at most (docs/deploy.md), so a scrape has less than 30,000."""
    SLICES = 10
    """Segments, and classes, of a version that have series at most."""
    SHORTEST_TOKEN = 16
    """Characters: 64 bits, where each is a hexadecimal digit."""
