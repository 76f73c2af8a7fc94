"""Exit codes of the command line.

0 is success, also if `check` has notes but no problems; 128 + n, such as 130 for Ctrl-C, is signal n.
"""

NO_ANSWER = 1  # `diagnose`: the bags do not support an answer
USER_ERROR = 2  # an error that the message explains, such as problems that `check` found
