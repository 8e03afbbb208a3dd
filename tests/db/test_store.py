"""What every storage promises."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from mcfuser.tune.progress import Progress
from mcfuser_db import Job, KeyedRequest, KeyReused, Order, Storage
from mcfuser_db.again import INTERRUPTIONS
from tests.support.clock import Clock
from tests.support.db_storages import claim_all, fresh, open_store, processes


def order(work: str = "a") -> Order:
    return Order(work.rjust(64, "0"), "b" * 64, 7, "cpu", {"seed": 0, "shape": ["x=1x2"]})


def submit(store: Storage, work: str = "a") -> Job:
    return store.submit(order(work))[0]


def claim(store: Storage, worker: str = "w", lease: float = 60) -> Job:
    job = store.claim(worker, lease)
    assert job is not None and job.claim is not None
    return job


def state(store: Storage, job: Job) -> str:
    found = store.job(job.id)
    assert found is not None
    return found.state


class TestJobs:
    def test_a_job_is_kept_as_it_was_ordered(self, store: Storage, clock: Clock) -> None:
        job, new = store.submit(order())
        found = store.job(job.id)
        assert new and found is not None
        assert (found.state, found.attempts, found.created) == ("queued", 0, clock.now)
        assert (found.model, found.model_bytes, found.device) == ("b" * 64, 7, "cpu")
        assert found.options == {"seed": 0, "shape": ["x=1x2"]}
        assert found.report is None and found.problem is None

    def test_equal_work_is_one_job_until_it_fails(self, store: Storage) -> None:
        first = submit(store)
        assert store.submit(order())[1] is False and submit(store).id == first.id
        token = claim(store).claim
        assert submit(store).id == first.id
        assert store.fail(token, {"status": 422, "detail": "no"})
        second, new = store.submit(order())
        assert new and second.id != first.id
        assert store.finish(claim(store).claim, "c" * 64, 3, {"chains": []})
        assert submit(store).id == second.id and state(store, second) == "done"

    def test_a_report_and_its_attestation_are_kept_to_the_letter(self, store: Storage) -> None:
        """The order of names and the digits of numbers, too: the report's bytes were signed."""
        job = submit(store)
        report = {"b": [0.1 + 0.2, 1e-9, 2**53 + 1, None], "a": {"µ": "\u0001", "1": True}}
        assert store.attestation(job.id) is None
        assert store.finish(claim(store).claim, "c" * 64, 3, report, '{"payload":"eA=="}\n')
        found = store.job(job.id)
        assert found is not None and json.dumps(found.report) == json.dumps(report)
        assert store.attestation(job.id) == '{"payload":"eA=="}\n'
        assert store.requeue(job.id) and store.attestation(job.id) is None

    def test_concurrent_equal_submissions_share_a_job(self, url: str, tmp_path: Path) -> None:
        store = Storage(url)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: store.submit(order()), range(40)))
        assert len({job.id for job, _ in found}) == 1
        assert sum(new for _, new in found) == 1
        store.close()

    def test_the_oldest_is_claimed_first_and_once(self, store: Storage, clock: Clock) -> None:
        jobs = []
        for work in "abc":
            jobs.append(submit(store, work).id)
            clock.wait(1)
        assert [claim(store).id for _ in jobs] == jobs
        assert store.claim("w", 60) is None

    def test_the_highest_priority_that_is_due_is_claimed_first(
        self, store: Storage, clock: Clock
    ) -> None:
        jobs = {}
        for work, priority in (("a", 0), ("b", 2), ("c", 2), ("d", -1)):
            jobs[work] = store.submit(replace(order(work), priority=priority))[0].id
            clock.wait(1)
        first = claim(store)
        assert first.id == jobs["b"] and store.postpone(first.claim, 30, "waiting")
        assert [claim(store).id for _ in range(3)] == [jobs[w] for w in "cad"]
        clock.wait(31)
        assert claim(store).id == jobs["b"]

    def test_who_shares_a_job_may_name_it_and_hurry_it(self, store: Storage) -> None:
        job = submit(store)
        shared = store.submit(replace(order(), name="nightly", priority=3))[0]
        assert (shared.id, shared.name, shared.priority) == (job.id, "nightly", 3)
        later = store.submit(replace(order(), name="other", priority=-5))[0]
        assert (later.name, later.priority, later.version) == ("nightly", 3, shared.version)
        claim(store)
        assert store.submit(replace(order(), priority=9))[0].priority == 3, "it runs already"

    def test_versions_grow_with_every_change_that_others_see(self, store: Storage) -> None:
        job = submit(store)
        seen = [store.versions([job.id, uuid4()])]

        def changed() -> bool:
            seen.append(store.versions([job.id]))
            assert set(seen[-1]) == {job.id}
            return seen[-1][job.id] > seen[-2][job.id]

        token = claim(store).claim
        assert changed()
        assert store.renew(token, 60) and not changed(), "the lease is the worker's business"
        assert store.renew(token, 60, Progress("tuning", 1, 3)) and changed()
        assert store.postpone(token, 0, "waiting") and changed()
        assert store.finish(claim(store).claim, "c" * 64, 3, {}) and changed()
        assert store.requeue(job.id) and changed()
        assert store.cancel(job.id) and changed()
        assert store.put_back(job.id) is not None and changed()
        (snapshot,) = store.snapshots([job.id, uuid4()])
        assert snapshot.version == seen[-1][job.id]

    def test_a_job_is_put_back_once_unless_another_does_its_work(self, store: Storage) -> None:
        job = submit(store)
        assert store.put_back(job.id) is None and store.put_back(uuid4()) is None
        store.fail(claim(store).claim, {"status": 500, "detail": "no"})
        back = store.put_back(job.id)
        assert back is not None and back.id == job.id
        assert (back.state, back.attempts, back.problem, back.finished) == ("queued", 0, None, None)
        store.cancel(job.id)
        other = submit(store)
        found = store.put_back(job.id)
        assert found is not None and found.id == other.id and state(store, job) == "cancelled"

    def test_a_key_stands_for_a_request_for_a_while(self, store: Storage, clock: Clock) -> None:
        key = KeyedRequest("1" * 64, "2" * 64, 3600)
        assert store.keyed(key) is None
        job, new = store.submit(order(), key)
        again, anew = store.submit(order("b"), key)
        assert new and not anew and again.id == job.id
        store.cancel(job.id)
        found = store.keyed(key)
        assert found is not None and (found.id, found.state) == (job.id, "cancelled")
        with pytest.raises(KeyReused, match=str(job.id)):
            store.submit(order(), replace(key, request="3" * 64))
        clock.wait(3600)
        assert store.keyed(replace(key, request="3" * 64)) is None
        later = store.submit(order(), replace(key, request="3" * 64))[0]
        assert later.id != job.id and store.keyed(replace(key, request="3" * 64)) is not None

    def test_sharing_makes_no_job(self, store: Storage) -> None:
        key = KeyedRequest("1" * 64, "2" * 64, 3600)
        assert store.share(order(), key) is None and store.keyed(key) is None
        job = submit(store)
        for _ in range(2):
            found = store.share(order(), key)
            assert found is not None and found.id == job.id
        assert store.counts()["queued"] == 1

    def test_a_claim_that_is_renewed_lasts(self, store: Storage, clock: Clock) -> None:
        submit(store)
        job = claim(store, lease=10)
        for done in range(3):
            clock.wait(9)
            assert store.renew(job.claim, 10, Progress("tuning", done, 3))
            assert store.claim("other", 10) is None
        found = store.job(job.id)
        assert found and (found.stage, found.done, found.total) == ("tuning", 2, 3)

    def test_a_claim_that_runs_out_is_another_worker_s(self, store: Storage, clock: Clock) -> None:
        submit(store)
        late = claim(store, "slow", lease=10)
        clock.wait(11)
        job = claim(store, "other")
        assert job.id == late.id and job.attempts == 2 and job.claim != late.claim
        assert not store.renew(late.claim, 10)
        assert not store.finish(late.claim, "c" * 64, 3, {})
        assert not store.fail(late.claim, {"status": 500})
        assert not store.retry(late.claim) and not store.give_back(late.claim)
        assert store.finish(job.claim, "d" * 64, 3, {})

    def test_a_dead_worker_s_jobs_are_taken_back_by_name(
        self, store: Storage, clock: Clock
    ) -> None:
        submit(store, "a"), submit(store, "b")
        dead, living = claim(store, "dead"), claim(store, "living")
        assert store.release("dead") == 1
        assert (state(store, dead), state(store, living)) == ("queued", "running")
        clock.wait(2)
        assert claim(store, "dead").attempts == 2

    def test_attempts_are_limited(self, store: Storage, clock: Clock) -> None:
        job = submit(store)
        for end in (store.retry, lambda _: store.release("w"), None):
            token = claim(store, "w", lease=10).claim
            if end is not None:
                assert end(token)
                clock.wait(100)
        clock.wait(11)
        assert store.claim("w", 10) is None
        found = store.job(job.id)
        assert found and found.state == "failed" and found.finished == clock.now
        assert found.problem and found.problem["status"] == 422
        assert "3 times" in found.problem["detail"]

    def test_a_job_given_back_has_lost_no_attempt(self, store: Storage) -> None:
        submit(store)
        for _ in range(5):
            assert store.give_back(claim(store).claim)
        claim(store, "w")
        assert store.release("w", blame=False) == 1
        assert claim(store).attempts == 1

    def test_failed_attempts_are_ever_further_apart(self, store: Storage, clock: Clock) -> None:
        first = submit(store)
        clock.wait(1)
        second = submit(store, "b")
        for wait in (2, 8):
            job = claim(store)
            assert job.id == first.id
            assert store.retry(job.claim)
            assert (back := store.job(first.id)) and back.due == clock.now + timedelta(seconds=wait)
            other = claim(store)  # the oldest does not block the queue
            assert other.id == second.id and store.give_back(other.claim)
            clock.wait(wait - 0.5)
            again = claim(store)
            assert again.id == second.id and store.give_back(again.claim)
            clock.wait(1)
        assert claim(store).attempts == 3

    def test_a_postponed_job_waits_and_has_lost_no_attempt(
        self, store: Storage, clock: Clock
    ) -> None:
        submit(store)
        for _ in range(5):
            job = claim(store)
            assert job.attempts == 1 and job.due is None
            assert store.postpone(job.claim, 30, "waiting: the disk is full")
            assert not store.postpone(job.claim, 30, "")
            assert store.claim("w", 60) is None
            found = store.job(job.id)
            assert found and found.stage == "waiting: the disk is full"
            clock.wait(30)

    def test_a_server_s_death_is_no_failed_attempt(self, store: Storage, clock: Clock) -> None:
        job, other = submit(store, "a"), None
        for number in range(INTERRUPTIONS):
            assert (held := claim(store, "w:0")).attempts == 1
            assert store.interrupted("w:1") == 0
            assert store.interrupted("w:0") == 1
            assert not store.renew(held.claim, 60)
            assert (found := store.job(job.id)) and found.interrupted == number + 1
        claim(store, "w:0")
        clock.wait(1)
        other = submit(store, "b")
        assert store.interrupted("w:0") == 1
        found = store.job(job.id)
        assert found and found.state == "failed" and found.problem
        assert f"{INTERRUPTIONS} times" in found.problem["detail"]
        assert claim(store).id == other.id

    @pytest.mark.thorough
    @pytest.mark.parametrize("what", ["worker", "process"])
    def test_a_kill_costs_no_attempt(self, store: Storage, what: str) -> None:
        job = submit(store, "a")
        for number in range(INTERRUPTIONS):
            assert (held := claim(store, "w:0")).attempts == 1
            if what == "worker":
                assert store.killed("w:1") == 0 and store.killed("w:0") == 1
            else:
                assert not store.spare(uuid4(), "killed") and store.spare(held.claim, "killed")
            assert not store.renew(held.claim, 60)
            assert (found := store.job(job.id)) and found.interrupted == number + 1
        held = claim(store, "w:0")
        assert store.killed("w:0") == 1 if what == "worker" else store.spare(held.claim, "killed")
        found = store.job(job.id)
        assert found and found.state == "failed" and found.problem
        assert "a process of the job" in found.problem["detail"]

    def test_a_done_job_says_what_was_made(self, store: Storage, clock: Clock) -> None:
        submit(store)
        clock.wait(5)
        job = claim(store)
        clock.wait(5)
        assert store.finish(job.claim, "c" * 64, 3, {"chains": [{"speedup": 2.5}]})
        found = store.job(job.id)
        assert found and (found.state, found.module, found.module_bytes) == ("done", "c" * 64, 3)
        assert found.report == {"chains": [{"speedup": 2.5}]}
        assert found.started == clock.now - timedelta(seconds=5) and found.finished == clock.now
        assert found.claim is None and found.worker is None and found.lease is None

    def test_a_cancelled_job_s_worker_is_told(self, store: Storage) -> None:
        queued, running = submit(store, "a"), submit(store, "b")
        token = claim(store).claim
        assert store.cancel(queued.id) and store.cancel(running.id)
        assert not store.renew(token, 60)
        assert store.claim("w", 60) is None
        assert not store.cancel(queued.id) and not store.cancel(uuid4())
        assert store.counts() == {
            "queued": 0, "running": 0, "done": 0, "failed": 0, "cancelled": 2,
        }  # fmt: skip
        assert store.submit(order("a"))[1]

    def test_a_done_job_is_done_again_when_its_module_is_lost(self, store: Storage) -> None:
        job = submit(store)
        assert not store.requeue(job.id)
        store.finish(claim(store).claim, "c" * 64, 3, {})
        assert store.requeue(job.id)
        again = claim(store)
        assert again.id == job.id and again.attempts == 1 and again.module is None

    def test_lists_are_newest_first_by_pages(self, store: Storage, clock: Clock) -> None:
        ids = []
        for number in range(7):
            ids.append(submit(store, f"{number}").id)
            clock.wait(number % 2)  # some at the same moment
        pages, after = [], None
        while page := store.jobs(limit=3, after=after):
            pages.append([j.id for j in page])
            after = page[-1].id
        assert [len(p) for p in pages] == [3, 3, 1]
        flat = [id for page in pages for id in page]
        assert sorted(flat) == sorted(ids) and flat[0] == ids[-1]
        assert [j.id for j in store.jobs(state="done")] == []
        assert store.jobs(after=uuid4()) == []


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["file", "postgresql"])
def test_four_processes_claim_each_job_once(kind: str, tmp_path: Path) -> None:
    with fresh(kind, tmp_path) as url:
        store = Storage(url)
        jobs = {str(submit(store, f"{number}").id) for number in range(50)}
        context = processes()
        start, out = context.Barrier(4), context.Queue()
        workers = [
            context.Process(target=claim_all, args=(url, f"w{i}", start, out)) for i in range(4)
        ]
        for worker in workers:
            worker.start()
        shares = [out.get(timeout=600) for _ in workers]
        for worker in workers:
            worker.join()
        claimed = [id for share in shares for id in share]
        assert sorted(claimed) == sorted(jobs)
        assert all(shares)
        assert store.counts()["done"] == 50
        store.close()


@pytest.mark.parametrize("kind", ["file", "postgresql"])
def test_processes_may_open_a_new_database_at_once(kind: str, tmp_path: Path) -> None:
    with fresh(kind, tmp_path, empty=True) as url:
        context = processes()
        start = context.Barrier(4)
        workers = [context.Process(target=open_store, args=(url, start)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [w.exitcode for w in workers] == [0, 0, 0, 0]
