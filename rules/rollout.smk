# The closed loop: act → predict → act … as one static chain per task up to its step budget, then its trajectory.
# Requires the task set; yields results/rollouts/. The steps are thin: they wait for a planner or a world model, run as
# threads of the head process and claim no core but one of `tasks_in_flight`. `priority` sends the furthest task on first,
# so that as few tasks as possible are open at a time. Which inputs count as `ancient` is decided by content
# (workflow_scripts/chain.py), never by file times.
localrules:
    act,
    predict,
    trajectory,
    rollout_results,


ROLLOUT = "results/rollouts/{model}/{setting}"


rule act:
    input:
        before=lambda w: RUN.screen_before(w),
    output:
        record=f"{ROLLOUT}/{{task}}/step_{{step}}/action.json",
    log:
        "results/logs/rollouts/{model}/{setting}/{task}/step_{step}_act.log",
    priority: lambda w: int(w.step)
    threads: 0
    resources:
        tasks_in_flight=1,
    params:
        identity=lambda w: RUN.act_identity(w),
    message:
        "{wildcards.model} {wildcards.setting} {wildcards.task}: action {wildcards.step}"
    run:
        RUN.act(wildcards, output, log)


rule predict:
    input:
        action=lambda w: RUN.action_before(w),
    output:
        record=f"{ROLLOUT}/{{task}}/step_{{step}}/prediction.json",
    log:
        "results/logs/rollouts/{model}/{setting}/{task}/step_{step}_predict.log",
    priority: lambda w: int(w.step) + 1
    threads: 0
    resources:
        tasks_in_flight=1,
    params:
        identity=lambda w: RUN.predict_identity(w),
    message:
        "{wildcards.model} {wildcards.setting} {wildcards.task}: prediction {wildcards.step}"
    run:
        RUN.predict(wildcards, output, log)


rule trajectory:
    input:
        last=lambda w: RUN.last_prediction(w),
    output:
        record=f"{ROLLOUT}/{{task}}/trajectory.json",
    log:
        "results/logs/rollouts/{model}/{setting}/{task}/trajectory.log",
    priority: 1000
    threads: 0
    resources:
        tasks_in_flight=1,
    params:
        identity=lambda w: RUN.trajectory_identity(w),
    message:
        "{wildcards.model} {wildcards.setting} {wildcards.task}: trajectory"
    run:
        RUN.trajectory(wildcards, output, log)


rule rollout_results:
    input:
        trajectories=lambda w: RUN.trajectories(w),
    output:
        results=f"{ROLLOUT}/rollout_results.json",
    log:
        "results/logs/rollouts/{model}/{setting}/rollout_results.log",
    threads: 0
    params:
        identity=lambda w: RUN.row_identity(w),
    message:
        "{wildcards.model} {wildcards.setting}: rollout_results.json"
    run:
        RUN.rollout_results(wildcards, output, log)
