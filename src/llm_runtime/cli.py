"""The `llm-runtime` command: options and exit codes only; the work is elsewhere.

Nothing heavy is imported before a command needs it. Exit codes: 0 done, 1 failed, 2 wrong usage or
configuration, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from llm_runtime import __version__
from llm_runtime.commands.bench import app as bench
from llm_runtime.core.errors import ConfigError, LLMRuntimeError

if TYPE_CHECKING:
    from llm_runtime.engines.assets import ModelStore

DEFAULT_URL = "http://127.0.0.1:8000"
BUILTIN = "builtin:smollm2-135m"

app = typer.Typer(
    name="llm-runtime",
    help="OpenAI-compatible LLM serving runtime and gateway.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
models = typer.Typer(help="Model files: list, pull, path, convert.", no_args_is_help=True)
app.add_typer(models, name="models")
app.add_typer(bench, name="bench")

ConfigFile = Annotated[
    str | None, typer.Option("--config", "-c", help="YAML file with settings.", metavar="FILE")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-o", help="Any setting, as in server.port=9000; may be repeated.", metavar="KEY=VALUE"
    ),
]


@contextmanager
def _told_plainly() -> Iterator[None]:
    """Turns what is raised on purpose into a message and an exit code."""
    try:
        yield
    except ConfigError as error:
        typer.echo(f"llm-runtime: {error.message}", err=True)
        raise typer.Exit(2) from None
    except LLMRuntimeError as error:
        typer.echo(f"llm-runtime: {error.message}", err=True)
        raise typer.Exit(1) from None


def _overrides(assignments: list[str] | None, **options: str | None) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for assignment in assignments or ():
        key, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment}: write KEY=VALUE, as in server.port=9000")
        overrides[key.strip()] = value
    named = {
        "host": "server.host",
        "port": "server.port",
        "backend": "engines.backend",
        "model": "model.path",
    }
    overrides.update({named[name]: value for name, value in options.items() if value is not None})
    return overrides


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llm-runtime {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options that belong to no command."""


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[
        str | None, typer.Option(help="Port to listen on.", show_default="8000", metavar="PORT")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="Engine: llama.cpp, vllm, vllm-inprocess, hf, openai or mock.", show_default="llama.cpp"
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="GGUF file or builtin model.", show_default=BUILTIN)
    ] = None,
    config: ConfigFile = None,
    assignments: Assignments = None,
) -> None:
    """Serve a model behind the OpenAI API, until stopped."""
    with _told_plainly():
        from llm_runtime.settings import load_settings

        overrides = _overrides(assignments, host=host, port=port, backend=backend, model=model)
        settings = load_settings(overrides, os.environ, config)
        from llm_runtime import main

        code = main.serve(settings)
    raise typer.Exit(code)


@app.command()
def chat(
    text: Annotated[str | None, typer.Argument(help="The question; without it, standard input.")] = None,
    url: Annotated[str, typer.Option(help="Address of the server.")] = DEFAULT_URL,
    model: Annotated[
        str | None, typer.Option(help="Model to ask.", show_default="the server's first")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Bearer key.", show_default="the first of LLM_RUNTIME_API_KEYS")
    ] = None,
) -> None:
    """Ask a running server one question and watch the answer come."""
    from llm_runtime.commands.chat import Question, ask

    key = api_key or os.environ.get("LLM_RUNTIME_API_KEYS", "").partition(",")[0].strip()
    question = Question(sys.stdin.read() if text is None else text, model, max_tokens)
    finish_reason, begun = None, False
    try:
        with _told_plainly(), closing(ask(url, key, question)) as answer:
            for piece in answer:
                begun = begun or bool(piece.text)
                typer.echo(piece.text, nl=False)
                finish_reason = piece.finish_reason or finish_reason
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        if begun:
            typer.echo()
    if finish_reason == "length":
        typer.echo("(cut off at the token limit; --max-tokens raises it)", err=True)


@app.command("config")
def show_config(config: ConfigFile = None, assignments: Assignments = None) -> None:
    """Print the effective settings, each with where it comes from."""
    with _told_plainly():
        from llm_runtime.commands.show_config import render
        from llm_runtime.settings import load_settings

        settings = load_settings(_overrides(assignments), os.environ, config)
        for line in render(settings):
            typer.echo(line)
        for warning in settings.warnings:
            typer.echo(f"llm-runtime: warning: {warning}", err=True)


@app.command()
def doctor(config: ConfigFile = None, assignments: Assignments = None) -> None:
    """Check whether this machine can serve what is configured; ends with 1 if it cannot."""
    failed = False
    with _told_plainly():
        from llm_runtime.commands.doctor import examine

        for finding in examine(_overrides(assignments), os.environ, config):
            typer.echo(str(finding))
            failed = failed or finding.status == "fail"
    raise typer.Exit(1 if failed else 0)


@models.command("list")
def list_models() -> None:
    """List the builtin model and what is in the model folder, with sizes."""
    with _told_plainly():
        from llm_runtime.commands.models import table

        for line in table(_store()):
            typer.echo(line)


@models.command()
def pull(
    name: Annotated[
        str, typer.Argument(help="Builtin model, or a model of the hub: hf:ORG/NAME[@REVISION][:FILE].")
    ] = BUILTIN,
    hf_endpoint: Annotated[
        str | None,
        typer.Option(
            help="Address of the hub.", show_default="HF_ENDPOINT, else the public one", metavar="URL"
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Files fetched at once.")] = 4,
    retries: Annotated[int, typer.Option(min=0, help="Tries in a row that may bring nothing.")] = 5,
) -> None:
    """Bring a model to this machine, unless it is here.

    Prints the path of a builtin one; of a model of the hub the lines that make `serve` use it, as in
    eval "$(llm-runtime models pull hf:ORG/NAME)". What was fetched before an interruption is kept.
    A token in HF_TOKEN is sent to the hub and nowhere else.
    """
    try:
        with _told_plainly():
            from llm_runtime.commands import models as commands

            if not name.startswith("hf:"):
                typer.echo(commands.pull(_store(), name))
                return
            hub = commands.hub_settings(os.environ, hf_endpoint, workers, retries)
            for line in commands.pull_from_hub(_store(), name, hub):
                typer.echo(line)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@models.command()
def path(name: Annotated[str, typer.Argument(help="Model, as listed.")] = BUILTIN) -> None:
    """Print the path of a model's file."""
    with _told_plainly():
        from llm_runtime.commands.models import path as find

        typer.echo(find(_store(), name))


@models.command()
def convert(
    name: Annotated[str, typer.Argument(help="Builtin model or GGUF file.")] = BUILTIN,
    python: Annotated[
        str | None, typer.Option(help="Python with torch and transformers.", show_default="vLLM's")
    ] = None,
) -> None:
    """Make a folder of safetensors of a GGUF model, for engines that read those; print its path."""
    with _told_plainly():
        from llm_runtime.commands.models import convert as make
        from llm_runtime.settings import load_settings

        chosen = {"engines.vllm.python": python} if python is not None else {}
        config = load_settings(chosen, os.environ).engines.vllm
        typer.echo(make(name, config, os.environ, lambda line: typer.echo(line, err=True)))


def _store() -> ModelStore:
    from llm_runtime.engines.assets import ModelStore

    return ModelStore(os.environ)
