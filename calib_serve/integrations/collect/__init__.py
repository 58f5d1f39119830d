"""Labels of files and of Kafka's topics, brought to the watch; each is counted once, and none is lost."""

from calib_serve.integrations.collect.sending import Sent, send_label_file

__all__ = ["Sent", "send_label_file"]
