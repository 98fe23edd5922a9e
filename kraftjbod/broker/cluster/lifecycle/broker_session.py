"""PURE. ``BrokerSession``: how long no other broker can lead this broker's partitions.

* A session lasts ``timeout_ms`` from the time at which the last answered request was sent. After
  that, the controller may have fenced this broker for its silence. The controller announces
  ``timeout_ms`` in its answer; the broker's own file does not count.
* The session is also in doubt after the loss of the connection or of the registration, or after
  any failed request, until a later request is answered: a controller that refuses the request, or
  does not get it, may not be the one that decides about the session.
* Leadership changes caused by an expired session are visible once the local metadata reaches the
  offset in the controller's response.
"""

from __future__ import annotations


class BrokerSession:
    """One request is on its way at a time."""

    def __init__(self, *, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        #: When the last request was sent, and the last one that was answered.
        self._sent_ms = 0
        self._answered_ms: int | None = None
        #: How many requests were sent: all, up to the one that was answered last, and before the
        #: last loss.
        self._sent = self._answered = self._lost = 0
        self._current_from = -1

    def __repr__(self) -> str:
        return f"<BrokerSession answered_ms={self._answered_ms} current_from={self._current_from}>"

    def sent(self, now_ms: int) -> None:
        self._sent += 1
        self._sent_ms = now_ms

    def answered(self, metadata_offset: int, timeout_ms: int = 0) -> None:
        """
        :param metadata_offset: how far the controller's metadata was; -1 if it did not say.
        :param timeout_ms: of sessions from now on; 0 if it did not say.
        """
        self._answered_ms, self._answered = self._sent_ms, self._sent
        self._current_from = metadata_offset
        self._timeout_ms = timeout_ms or self._timeout_ms

    def lost(self) -> None:
        """The connection or the registration was lost, or a request failed.

        Answers to requests that were sent before prove nothing any more.
        """
        self._lost = self._sent

    def is_over(self, now_ms: int) -> bool:
        """False before the first answer."""
        return self._answered_ms is not None and now_ms - self._answered_ms >= self._timeout_ms

    def is_in_doubt(self, now_ms: int, metadata_offset: int) -> bool:
        """Whether others may lead what metadata up to ``metadata_offset`` says that this broker
        leads; False before the first answer.

        A change that the controller decides for other reasons than this broker's silence is told
        to its next leader at the same time: of that there is no warning.
        """
        if self._answered_ms is None:
            return False
        is_cut_off = self._answered <= self._lost
        return is_cut_off or metadata_offset < self._current_from or self.is_over(now_ms)
