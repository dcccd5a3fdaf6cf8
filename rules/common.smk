# What every stage needs: the checked configuration, the rows it asks for, and how a job runs and reports.
# Requires config/config.yaml and config/models.yaml; yields RUN, run_job and the hooks of a run. Logic lives in
# workflow_scripts/; here it meets Snakemake.
import sys

sys.path.insert(0, str(workflow.basedir))

from workflow_scripts import config as configuration
from workflow_scripts.failures import Failure, InvalidInput
from workflow_scripts.run import Run
from workflow_scripts.score_run import ScoreRun
from workflow_scripts.train_run import TrainRun


def refuse_bad_input(function, *arguments):
    """Calls a function; what a user got wrong ends the run with its explanation alone, without a traceback."""
    try:
        return function(*arguments)
    except InvalidInput as error:
        raise WorkflowError(str(error)) from None


DEFAULTS = workflow.basedir
MODELS = refuse_bad_input(configuration.read_yaml, f"{DEFAULTS}/config/models.yaml")
# Read once by our own reader for its errors (file, line, corrected line); Snakemake's reader then merges.
refuse_bad_input(configuration.read_yaml, f"{DEFAULTS}/config/config.yaml")


configfile: f"{DEFAULTS}/config/config.yaml"


CONFIG = refuse_bad_input(configuration.load, config, MODELS)
RUN = refuse_bad_input(Run, CONFIG, workflow)
SCORING = refuse_bad_input(ScoreRun, RUN)
TRAINING = refuse_bad_input(TrainRun, RUN)


wildcard_constraints:
    model=r"[A-Za-z0-9][A-Za-z0-9._]*",
    setting=r"[A-Za-z0-9][A-Za-z0-9._]*(-r\d+)?",
    task=r"[A-Za-z0-9][A-Za-z0-9._-]*",
    step=r"\d{3}",


onstart:
    try:
        RUN.start()
    except (Failure, InvalidInput) as error:
        raise WorkflowError(str(error)) from None


onsuccess:
    RUN.finish(True)


onerror:
    RUN.finish(False)
