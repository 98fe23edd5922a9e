"""PURE. ``BrokerSession``: how long no other broker can lead this broker's partitions.

* A session lasts ``timeout_ms`` from the time at which the last answered request was sent. After
  that, the controller may have fenced this broker for its silence. The controller announces
  ``timeout_ms`` in its response. The broker's own file does not count.
* The session is also in doubt after the loss of the connection or of the registration, or after any
  failed request, until a later request is answered. A controller that refuses a request, or does
  not get it, may not be the active one.
* Leadership changes caused by an expired session are visible once the local metadata reaches the
  offset in the controller's response (ADR 98).
"""

from __future__ import annotations


class BrokerSession:
    """Tells whether the controller may have fenced this broker because of its silence.

    The session lasts ``timeout_ms`` from the sending of the last answered request. The owner notes
    each request by ``sent`` and its result by :meth:`answered` or :meth:`lost`. One request is in
    flight at a time. Times are monotonic ms.
    """

    def __init__(self, *, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        #: The time of the last request, and of the last answered one.
        self._sent_ms = 0
        self._answered_ms: int | None = None
        #: Numbers of requests: sent in total, up to the last answered one, and before the last
        #: loss.
        self._sent = self._answered = self._lost = 0
        self._current_from = -1

    def __repr__(self) -> str:
        return f"<BrokerSession answered_ms={self._answered_ms} current_from={self._current_from}>"

    def sent(self, now_ms: int) -> None:
        self._sent += 1
        self._sent_ms = now_ms

    def answered(self, metadata_offset: int, timeout_ms: int = 0) -> None:
        """Note a response to the last request.

        :param metadata_offset: the controller's metadata offset; -1 if unknown.
        :param timeout_ms: the session timeout from now on; 0 if unknown.
        """
        self._answered_ms, self._answered = self._sent_ms, self._sent
        self._current_from = metadata_offset
        self._timeout_ms = timeout_ms or self._timeout_ms

    def lost(self) -> None:
        """Note that the connection or the registration was lost, or that a request failed.

        Responses to earlier requests no longer prove a session.
        """
        self._lost = self._sent

    def is_over(self, now_ms: int) -> bool:
        """Return whether the session has expired; False before the first response."""
        return self._answered_ms is not None and now_ms - self._answered_ms >= self._timeout_ms

    def is_in_doubt(self, now_ms: int, metadata_offset: int) -> bool:
        """Return whether other brokers may lead partitions that this broker leads by its metadata.

        Covers only leadership changes caused by a silent broker. After other changes a new leader
        may learn of its role before this broker does.

        :param metadata_offset: the offset up to which this broker has replayed the metadata.
        :return: False before the first response.
        """
        if self._answered_ms is None:
            return False
        is_cut_off = self._answered <= self._lost
        return is_cut_off or metadata_offset < self._current_from or self.is_over(now_ms)
