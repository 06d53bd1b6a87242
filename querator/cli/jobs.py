"""`querator jobs`: long maintenance work that the daemon does in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from querator.cli.shell.options import Interval, Wait, Watch, command
from querator.cli.shell.tree import NOUNS, noun
from querator.cli.terminal.progress import Progress
from querator.cli.terminal.render import Format, message_record
from querator.cli.terminal.session import Session
from querator.cli.terminal.waiting import poll, repeat
from querator.errors import QueratorError

if TYPE_CHECKING:
    from querator.wire.messages import Job

app = noun(NOUNS["jobs"].help)

COLUMNS = ("job_id", "kind", "queue_name", "partition", "state", "done", "total", "created_at", "reason")

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Id of the job.")]


def job_record(job: Job) -> dict[str, Any]:
    return message_record(job, "created_at", "ended_at")


@command(app, "list")
def list_(session: Session, watch: Watch = False, interval: Interval = "2s") -> None:
    """List running jobs, and jobs that ended recently."""

    def show_records(records: list[dict[str, Any]]) -> None:
        session.output.records(records, COLUMNS, name="job_id", empty="no jobs")

    repeat(session, watch, interval, lambda: [job_record(job) for job in session.client.list_jobs()], show_records)


@command(app, "show")
def show(session: Session, job: JobId, wait: Wait = False) -> None:
    """Show a job. With --wait, wait until it has ended first."""
    found = wait_for(session, job) if wait else session.client.show_job(job)
    if not (wait and session.quiet):
        session.output.record(job_record(found), name="job_id")


@command(app, "cancel")
def cancel(session: Session, job: JobId) -> None:
    """Cancel a job. The daemon finishes or undoes the step that is under way."""
    session.client.cancel_job(job)
    session.done(f"job {job} is being cancelled", {"job_id": job, "cancelled": True}, name="job_id")


def wait_for(session: Session, job_id: str) -> Job:
    """Wait until a job has ended, without a limit unless --timeout is given. Raises if the job failed."""
    limit = session.waiting_limit()
    hint = f"the job is still running; querator jobs show {job_id} --wait waits for it again"
    job = session.client.show_job(job_id)
    with Progress(session.streams, f"{job.kind} of '{job.queue_name}'") as progress:
        for _ in poll(limit, f"job {job_id}", hint):
            job = session.client.show_job(job_id)
            if job.state != "running":
                break
            progress.update(job.done, job.total)
    if job.state != "done":
        raise QueratorError(f"job {job_id} {job.state}: {job.reason}" if job.reason else f"job {job_id} {job.state}")
    return job


def started(session: Session, job_id: str, what: str, *, wait: bool) -> None:
    """Finish a command that has started a job: wait for the job, or print how to."""
    if wait:
        job = wait_for(session, job_id)
        session.done(f"{what}: done", job_record(job), name="job_id")
    elif session.format is Format.TABLE:
        session.note(f"{what}: job {job_id} has started; querator jobs show {job_id} --wait waits for it")
        if not session.quiet:
            session.streams.stdout.write(f"{job_id}\n")
    else:
        session.output.record(job_record(session.client.show_job(job_id)), name="job_id")
