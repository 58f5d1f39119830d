"""The watcher over HTTP: labels and predictions in, metrics and a page out."""

from calib_serve.web.app import create_app as create_app
from calib_serve.web.bodies import Full as Full
from calib_serve.web.bodies import TooLarge as TooLarge
from calib_serve.web.bodies import Waiting as Waiting
from calib_serve.web.guard import LOOPBACK as LOOPBACK
from calib_serve.web.guard import NO_CORRECTIONS as NO_CORRECTIONS
from calib_serve.web.guard import Guard as Guard
from calib_serve.web.guard import allowed_hosts as allowed_hosts
from calib_serve.web.guard import may_correct as may_correct
from calib_serve.web.limits import Limits as Limits
from calib_serve.web.monitoring.files import PARTS as PARTS
from calib_serve.web.monitoring.files import WINDOWS as WINDOWS
from calib_serve.web.monitoring.files import MonitoringOptions as MonitoringOptions
from calib_serve.web.monitoring.files import Part as Part
from calib_serve.web.monitoring.files import export_monitoring as export_monitoring
from calib_serve.web.monitoring.files import monitoring_files as monitoring_files
from calib_serve.web.server import serve_app as serve_app
from calib_serve.web.tokens import Token as Token
from calib_serve.web.tokens import TokenFile as TokenFile
from calib_serve.web.tokens import Tokens as Tokens
from calib_serve.web.tokens import new_token as new_token
from calib_serve.web.tokens import read_tokens as read_tokens
