"""Send requests with every client, by one signature."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

Send = Callable[[str, "str | None", Mapping[str, str]], int]
"""Sends a GET request to a URL, through a proxy, with headers; returns the answer's status."""


def _requests(url: str, proxy: str | None, headers: Mapping[str, str]) -> int:
    requests = pytest.importorskip("requests")
    with requests.Session() as session:
        session.trust_env = False
        proxies = {"http": proxy, "https": proxy} if proxy else None
        return int(session.get(url, headers=headers, proxies=proxies).status_code)


def _urllib3(url: str, proxy: str | None, headers: Mapping[str, str]) -> int:
    urllib3 = pytest.importorskip("urllib3")
    with urllib3.ProxyManager(proxy) if proxy else urllib3.PoolManager() as manager:
        return int(manager.request("GET", url, headers=headers).status)


def _httpx(name: str) -> Send:
    def send(url: str, proxy: str | None, headers: Mapping[str, str]) -> int:
        httpx = pytest.importorskip(name)
        transport = httpx.HTTPTransport(proxy=httpx.Proxy(proxy) if proxy else None)
        with httpx.Client(transport=transport, follow_redirects=True, trust_env=False) as client:
            return int(client.get(url, headers=headers).status_code)

    return send


def _async_httpx(name: str) -> Send:
    def send(url: str, proxy: str | None, headers: Mapping[str, str]) -> int:
        httpx = pytest.importorskip(name)

        async def get() -> int:
            transport = httpx.AsyncHTTPTransport(proxy=httpx.Proxy(proxy) if proxy else None)
            async with httpx.AsyncClient(
                transport=transport, follow_redirects=True, trust_env=False
            ) as client:
                return int((await client.get(url, headers=headers)).status_code)

        return asyncio.run(get())

    return send


def _aiohttp(url: str, proxy: str | None, headers: Mapping[str, str]) -> int:
    aiohttp = pytest.importorskip("aiohttp")

    async def get() -> int:
        async with aiohttp.ClientSession() as session:
            answer = await session.get(url, headers=headers, proxy=proxy)
            await answer.read()
            return int(answer.status)

    return asyncio.run(get())


CLIENTS: Mapping[str, Send] = {
    "requests": _requests,
    "urllib3": _urllib3,
    "httpx": _httpx("httpx"),
    "httpx async": _async_httpx("httpx"),
    "httpx2": _httpx("httpx2"),
    "httpx2 async": _async_httpx("httpx2"),
    "aiohttp": _aiohttp,
}


def send(client: str, url: str, proxy: str | None = None, headers: Mapping[str, Any] | None = None) -> int:
    """Send a request with a client; skip the test if the client is not installed."""
    return CLIENTS[client](url, proxy, dict(headers or {}))
