"""The same cache with one line wrong, for which pymllm verify finds a program of few steps.

::

    pymllm verify --command "python3 broken_cache.py"
"""

from page_cache import HELLO, PageCache, serve


class BrokenCache(PageCache):
    """A cache that forgets to ask whether a page is held."""

    def may_go(self, prefix):
        return True


if __name__ == "__main__":
    serve(BrokenCache, {**HELLO, "name": "broken-cache"})
