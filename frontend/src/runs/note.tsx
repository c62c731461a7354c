/** What people say about a run: name, tags, note, star; and the way to the trash, asked twice. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { RunRow } from "../api";
import { ServerError, tell } from "../server";

/** Change a run's note; the list hears of it as of any other change. */
export function changeNote(run: string, changes: Record<string, unknown>): Promise<unknown> {
  return tell("note", { run, ...changes });
}

export function NoteDialog(props: { row: RunRow; onClose: () => void; onChanged: () => void }) {
  const { row } = props;
  const dialog = useRef<HTMLDialogElement>(null);
  const [title, setTitle] = useState(row.title === row.name ? "" : row.title);
  const [tags, setTags] = useState(row.tags.join(", "));
  const [text, setText] = useState(row.note);
  const [isDeleting, setDeleting] = useState(false);
  const [typed, setTyped] = useState("");
  const [error, setError] = useState("");
  useEffect(() => dialog.current?.showModal(), []);
  const send = async (work: Promise<unknown>) => {
    try {
      await work;
    } catch (reason) {
      setError(reason instanceof ServerError ? reason.message : String(reason));
      return;
    }
    props.onChanged();
    dialog.current?.close();
  };
  const save = (more: Record<string, unknown> = {}) =>
    void send(changeNote(row.run, { title, tags: tags.split(","), text, ...more }));
  return (
    <dialog ref={dialog} class="note" onClose={props.onClose} aria-labelledby="note-title">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          save();
        }}
      >
        <h2 id="note-title">{row.name}</h2>
        <label>
          Name
          <input value={title} placeholder={row.name} onInput={(event) => setTitle(event.currentTarget.value)} />
        </label>
        <label>
          Tags, separated by commas
          <input value={tags} onInput={(event) => setTags(event.currentTarget.value)} />
        </label>
        <label>
          Note
          <textarea rows={4} value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        {row.note_by && <p class="foot-note">Last changed by {row.note_by}</p>}
        {error && (
          <p class="red-text" role="alert">
            {error}
          </p>
        )}
        <div class="controls">
          <button type="submit" class="button is-main">
            Save
          </button>
          <button type="button" onClick={() => dialog.current?.close()}>
            Cancel
          </button>
          <button type="button" class="push" onClick={() => save({ is_archived: !row.is_archived })}>
            {row.is_archived ? "Unarchive" : "Archive"}
          </button>
          {!isDeleting && (
            <button type="button" onClick={() => setDeleting(true)}>
              Delete
            </button>
          )}
        </div>
        {isDeleting && (
          <div class="note-delete">
            <label>
              The run goes to the trash beside it (.vario/trash). Type {row.name} to confirm
              <input value={typed} autocomplete="off" onInput={(event) => setTyped(event.currentTarget.value)} />
            </label>
            <div class="controls">
              <button
                type="button"
                class="button is-danger"
                disabled={typed !== row.name}
                onClick={() => void send(tell("trash", { run: row.run, confirm: typed }))}
              >
                Move to the trash
              </button>
            </div>
          </div>
        )}
      </form>
    </dialog>
  );
}
