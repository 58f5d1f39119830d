"""Options: an option is a field of a frozen dataclass here, which is its only declaration.

A field has the option's type and default; the text below it is its help, and ``_check`` its check. The
command line, configuration files, environment variables, keyword arguments and the reference pages are made
from these classes. A field that is marked PYTHON is no option of the command line, and one marked SCHEMA is
of ``calib-serve schema`` alone. These modules import nothing heavy, and each is imported by what needs it.

``keywords`` is made from them by scripts/keywords.py: run it where a field or a method's option changes.
"""
