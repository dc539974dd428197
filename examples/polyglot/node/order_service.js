// An order service with pg: an order and its event are saved in one transaction.
//
//     DATABASE_URL=postgresql://… node order_service.js PRODUCT UNITS
import pg from "pg";

/** Runs `work` in a transaction. */
async function inTransaction(client, work) {
  await client.query("BEGIN");
  try {
    await work();
    await client.query("COMMIT");
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  }
}

/** Adds to the caller's transaction: the event exists if and only if the order does. */
async function place(client, product, units) {
  const insert = "INSERT INTO orders (product, units) VALUES ($1, $2) RETURNING id";
  const { rows } = await client.query(insert, [product, units]);
  const payload = JSON.stringify({ order_id: rows[0].id, product, units });
  await client.query("SELECT outbox_record('order', $1, 'placed', $2)", [String(rows[0].id), payload]);
}

const [product, units] = process.argv.slice(2);
const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
await client.connect();
try {
  await inTransaction(client, () => place(client, product, Number(units)));
} finally {
  await client.end();
}
